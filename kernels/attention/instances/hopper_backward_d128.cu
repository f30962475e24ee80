#include "kernels/attention/hopper_backward.cuh"

namespace tilefold::attention {
template void launch_hopper_backward<bf16, 128>(const BackwardParams&, int, CUstream_st*);
template void launch_hopper_backward<f16, 128>(const BackwardParams&, int, CUstream_st*);
}  // namespace tilefold::attention
