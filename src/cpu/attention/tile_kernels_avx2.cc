#include "cpu/attention/row_kernels_inl.h"
#include "cpu/attention/tile_kernels_inl.h"

namespace tilefold::cpu::avx2 {

constexpr TileKernels<float> kFloat = Bodies<Simd<float, 8>, 4>::table("avx2");
constexpr TileKernels<double> kDouble = Bodies<Simd<double, 4>, 4>::table("avx2");
constexpr RowKernels<float> kFloatRows = RowBodies<Simd<float, 8>>::table();
constexpr RowKernels<double> kDoubleRows = RowBodies<Simd<double, 4>>::table();
constexpr StorageKernels kStorage = {widen_bf16, widen_f16};
constexpr RandomKernels kRandom = {random_words};

}  // namespace tilefold::cpu::avx2
