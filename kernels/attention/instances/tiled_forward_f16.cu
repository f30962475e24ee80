#include "kernels/attention/tiled_forward.cuh"

namespace tilefold::attention {
template void launch_tiled_forward<f16, 64, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 128, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 256, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 64, 128>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 128, 128>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
