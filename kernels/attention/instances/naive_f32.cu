#include "kernels/attention/naive.cuh"

namespace tilefold::attention {
template void launch_naive_scores<float, 64>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<float, 64>(const NaiveParams&, const NaiveProduct&, bool,
                                              CUstream_st*);
template void launch_naive_scores<float, 128>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<float, 128>(const NaiveParams&, const NaiveProduct&, bool,
                                               CUstream_st*);
template void launch_naive_scores<float, 256>(const NaiveParams&, bool, CUstream_st*);
template void launch_naive_product<float, 256>(const NaiveParams&, const NaiveProduct&, bool,
                                               CUstream_st*);
template void launch_naive_softmax<float>(const NaiveParams&, CUstream_st*);
}  // namespace tilefold::attention
