#include "kernels/attention/tiled_forward.cuh"

namespace tilefold::attention {
template void launch_tiled_forward<f16, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 128>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<f16, 256>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
