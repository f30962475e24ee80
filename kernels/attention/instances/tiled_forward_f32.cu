#include "kernels/attention/tiled_forward.cuh"

namespace tilefold::attention {
template void launch_tiled_forward<float, 64, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<float, 128, 64>(const Params&, const Partials&, CUstream_st*);
template void launch_tiled_forward<float, 256, 64>(const Params&, const Partials&, CUstream_st*);
}  // namespace tilefold::attention
