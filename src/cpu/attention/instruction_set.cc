// The best instruction set that this machine has, looked up once.
#include "cpu/attention/row_kernels.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {
namespace {

enum class InstructionSet { baseline, avx2, avx512 };

InstructionSet best() {
  static const InstructionSet kBest = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return InstructionSet::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      return InstructionSet::avx2;
    return InstructionSet::baseline;
  }();
  return kBest;
}

template <class Table>
const Table& pick(const Table& baseline, const Table& avx2, const Table& avx512) {
  switch (best()) {
    case InstructionSet::avx512:
      return avx512;
    case InstructionSet::avx2:
      return avx2;
    default:
      return baseline;
  }
}

}  // namespace

template <>
const TileKernels<float>& tile_kernels<float>() {
  return pick(baseline::kFloat, avx2::kFloat, avx512::kFloat);
}

template <>
const TileKernels<double>& tile_kernels<double>() {
  return pick(baseline::kDouble, avx2::kDouble, avx512::kDouble);
}

template <>
const RowKernels<float>& row_kernels<float>() {
  return pick(baseline::kFloatRows, avx2::kFloatRows, avx512::kFloatRows);
}

template <>
const RowKernels<double>& row_kernels<double>() {
  return pick(baseline::kDoubleRows, avx2::kDoubleRows, avx512::kDoubleRows);
}

const StorageKernels& storage_kernels() {
  return pick(baseline::kStorage, avx2::kStorage, avx512::kStorage);
}

const RandomKernels& random_kernels() {
  return pick(baseline::kRandom, avx2::kRandom, avx512::kRandom);
}

}  // namespace tilefold::cpu
