#include "kernels/attention/tiled_backward.cuh"

namespace tilefold::attention {
template void launch_tiled_backward<float, 64>(const Params&, CUstream_st*);
template void launch_tiled_backward<float, 128>(const Params&, CUstream_st*);
template void launch_tiled_backward<float, 256>(const Params&, CUstream_st*);
template void launch_sums<float>(const Params&, CUstream_st*);
}  // namespace tilefold::attention
