// Philox4x32-10: a counter-based random function. Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011). The same (key, counter) gives the same four words on every
// device, so nothing random needs to be stored. constexpr, so that device code can call it too.
#pragma once

#include <array>
#include <cstdint>

namespace tilefold {

struct Philox {
  using Words = std::array<std::uint32_t, 4>;

  static constexpr Words random(std::uint64_t key, Words counter) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ull * counter[0], p1 = 0xCD9E8D57ull * counter[2];
      counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0,
                 static_cast<std::uint32_t>(p1),
                 static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1,
                 static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return counter;
  }
};

}  // namespace tilefold
