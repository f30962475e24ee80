#include "kernels/attention/combine.cuh"
#include "kernels/attention/decode_forward.cuh"

namespace tilefold::attention {
template void launch_decode<float, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<float, 128>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<float, 256>(const Params&, const Partials&, CUstream_st*);
template void launch_combine<float>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
