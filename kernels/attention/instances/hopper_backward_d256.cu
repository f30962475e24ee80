#include "kernels/attention/hopper_wide_queries.cuh"

namespace tilefold::attention {
template void launch_hopper_wide_backward<bf16>(const BackwardParams&, int, CUstream_st*);
template void launch_hopper_wide_backward<f16>(const BackwardParams&, int, CUstream_st*);
}  // namespace tilefold::attention
