#include "kernels/attention/combine.cuh"
#include "kernels/attention/decode_forward.cuh"

namespace tilefold::attention {
template void launch_decode<f16, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<f16, 128>(const Params&, const Partials&, CUstream_st*);
template void launch_decode<f16, 256>(const Params&, const Partials&, CUstream_st*);
template void launch_combine<f16>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
