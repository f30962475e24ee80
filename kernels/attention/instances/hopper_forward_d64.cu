#include "kernels/attention/hopper_forward.cuh"

namespace tilefold::attention {
template void launch_hopper_forward<bf16, 64>(const ForwardParams&, int, CUstream_st*);
template void launch_hopper_forward<f16, 64>(const ForwardParams&, int, CUstream_st*);
}  // namespace tilefold::attention
