#include "kernels/attention/add_parts.cuh"
#include "kernels/attention/tiled_backward.cuh"

namespace tilefold::attention {
template void launch_tiled_backward<bf16, 64>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<bf16, 128>(const Params&, const GradientParts&, CUstream_st*);
template void launch_tiled_backward<bf16, 256>(const Params&, const GradientParts&, CUstream_st*);
template void launch_sums<bf16>(const Params&, CUstream_st*);
template void launch_add_parts<bf16>(const Params&, const GradientParts&, CUstream_st*);
}  // namespace tilefold::attention
