#include "cpu/attention/row_kernels_inl.h"
#include "cpu/attention/tile_kernels_inl.h"

namespace tilefold::cpu::baseline {

constexpr TileKernels<float> kFloat = Bodies<Simd<float, 4>, 4>::table("baseline");
constexpr TileKernels<double> kDouble = Bodies<Simd<double, 2>, 4>::table("baseline");
constexpr RowKernels<float> kFloatRows = RowBodies<Simd<float, 4>>::table();
constexpr RowKernels<double> kDoubleRows = RowBodies<Simd<double, 2>>::table();
constexpr StorageKernels kStorage = {widen_bf16, widen_f16};
constexpr RandomKernels kRandom = {random_words};

}  // namespace tilefold::cpu::baseline
