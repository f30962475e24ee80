#include "kernels/attention/naive.cuh"
#include "kernels/attention/naive_fused.cuh"

namespace tilefold::attention {
template void launch_naive_scores<f16, 64>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<f16, 64>(const NaiveParams&, const NaiveProduct&, bool,
                                            CUstream_st*);
template void launch_naive_scores<f16, 128>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<f16, 128>(const NaiveParams&, const NaiveProduct&, bool,
                                             CUstream_st*);
template void launch_naive_scores<f16, 256>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<f16, 256>(const NaiveParams&, const NaiveProduct&, bool,
                                             CUstream_st*);
template void launch_naive_fused<f16, 64>(const NaiveParams&, CUstream_st*);
template void launch_naive_fused<f16, 128>(const NaiveParams&, CUstream_st*);
template void launch_naive_softmax<f16>(const NaiveParams&, CUstream_st*);
}  // namespace tilefold::attention
