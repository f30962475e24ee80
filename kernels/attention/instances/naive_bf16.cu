#include "kernels/attention/naive.cuh"
#include "kernels/attention/naive_fused.cuh"

namespace tilefold::attention {
template void launch_naive_scores<bf16, 64>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<bf16, 64>(const NaiveParams&, const NaiveProduct&, bool,
                                             CUstream_st*);
template void launch_naive_scores<bf16, 128>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<bf16, 128>(const NaiveParams&, const NaiveProduct&, bool,
                                              CUstream_st*);
template void launch_naive_scores<bf16, 256>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<bf16, 256>(const NaiveParams&, const NaiveProduct&, bool,
                                              CUstream_st*);
template void launch_naive_fused<bf16, 64>(const NaiveParams&, CUstream_st*);
template void launch_naive_fused<bf16, 128>(const NaiveParams&, CUstream_st*);
template void launch_naive_softmax<bf16>(const NaiveParams&, CUstream_st*);
}  // namespace tilefold::attention
