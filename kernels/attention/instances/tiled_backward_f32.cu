#include "kernels/attention/add_parts.cuh"
#include "kernels/attention/tiled_backward.cuh"

namespace tilefold::attention {
template void launch_tiled_backward<float, 64>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<float, 128>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<float, 256>(const Params&, const GradientParts&, CUstream_st*);
template void launch_sums<float>(const Params&, CUstream_st*);
template void launch_add_parts<float>(const Params&, const GradientParts&, CUstream_st*);
}  // namespace tilefold::attention
