#include "kernels/attention/tiled_backward.cuh"

namespace tilefold::attention {
template void launch_tiled_backward<bf16, 64>(const Params&, CUstream_st*);
template void launch_tiled_backward<bf16, 128>(const Params&, CUstream_st*);
template void launch_tiled_backward<bf16, 256>(const Params&, CUstream_st*);
template void launch_sums<bf16>(const Params&, CUstream_st*);
}  // namespace tilefold::attention
