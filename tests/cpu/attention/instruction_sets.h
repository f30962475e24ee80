// The kernel tables that the machine of the test can run.
#pragma once

#include <vector>

#include "cpu/attention/row_kernels.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::test {

template <class Real>
struct KernelSet {
  const cpu::TileKernels<Real>* tile;
  const cpu::RowKernels<Real>* row;
  const cpu::StorageKernels* storage;
  const cpu::RandomKernels* random;
};

inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

inline std::vector<KernelSet<float>> float_kernels() {
  using namespace cpu;
  std::vector<KernelSet<float>> sets = {
      {&baseline::kFloat, &baseline::kFloatRows, &baseline::kStorage, &baseline::kRandom}};
  if (has_avx2())
    sets.push_back({&avx2::kFloat, &avx2::kFloatRows, &avx2::kStorage, &avx2::kRandom});
  if (has_avx512())
    sets.push_back({&avx512::kFloat, &avx512::kFloatRows, &avx512::kStorage, &avx512::kRandom});
  return sets;
}

inline std::vector<KernelSet<double>> double_kernels() {
  using namespace cpu;
  std::vector<KernelSet<double>> sets = {
      {&baseline::kDouble, &baseline::kDoubleRows, &baseline::kStorage, &baseline::kRandom}};
  if (has_avx2())
    sets.push_back({&avx2::kDouble, &avx2::kDoubleRows, &avx2::kStorage, &avx2::kRandom});
  if (has_avx512())
    sets.push_back({&avx512::kDouble, &avx512::kDoubleRows, &avx512::kStorage, &avx512::kRandom});
  return sets;
}

}  // namespace tilefold::test
