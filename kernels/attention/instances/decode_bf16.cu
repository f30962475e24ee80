#include "kernels/attention/combine.cuh"
#include "kernels/attention/decode_forward.cuh"

namespace tilefold::attention {
template void launch_decode<bf16, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<bf16, 128>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<bf16, 256>(const Params&, const Partials&, CUstream_st*);
template void launch_combine<bf16>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
