// A permutation of [0, size) that is computed, not stored: a Feistel network over the smallest
// 2^(2h) >= size, walked on while it leaves the range (Black, Rogaway, "Ciphers with arbitrary
// finite domains", 2002). The range is at least a quarter of the domain (from size 5 on), so a
// look-up takes under four walks in the mean.
#pragma once

#include <cstdint>

#include "trainer/data/draws.h"

namespace tilefold {

class Permutation {
 public:
  // REQUIRES: 0 < size <= 2^62. Another stream or number: another permutation.
  Permutation(std::int64_t size, std::uint64_t seed, DataStream stream, std::uint64_t number);

  // REQUIRES: 0 <= i < size.
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::int64_t size_;
  std::uint64_t seed_, number_;
  DataStream stream_;
  int half_bits_;
};

}  // namespace tilefold
