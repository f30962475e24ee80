#include "kernels/attention/hopper_split_three.cuh"

namespace tilefold::attention {
template void launch_hopper_split<bf16, 64>(const SplitParams&, int, CUstream_st*);
template void launch_hopper_split<f16, 64>(const SplitParams&, int, CUstream_st*);
template void launch_hopper_split_three<bf16>(const SplitParams&, CUstream_st*);
template void launch_hopper_split_three<f16>(const SplitParams&, CUstream_st*);
}  // namespace tilefold::attention
