#include "kernels/attention/add_parts.cuh"
#include "kernels/attention/tiled_backward.cuh"

namespace tilefold::attention {
template void launch_tiled_backward<f16, 64>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<f16, 128>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<f16, 256>(const Params&, const GradientParts&, CUstream_st*);
template void launch_sums<f16>(const Params&, CUstream_st*);
template void launch_add_parts<f16>(const Params&, const GradientParts&, CUstream_st*);
}  // namespace tilefold::attention
