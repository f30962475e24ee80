#include "trainer/data/permutation.h"

#include "base/error.h"

namespace tilefold {
namespace {

constexpr std::uint32_t kRounds = 6;  // 4 suffice for a good cipher; halves here are a few bits

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, DataStream stream,
                         std::uint64_t number)
    : size_(size), seed_(seed), number_(number), stream_(stream), half_bits_(2) {
  expect(size > 0 && size <= (std::int64_t{1} << 62), "size of a permutation");
  while ((std::int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

std::int64_t Permutation::operator()(std::int64_t i) const {
  const std::uint32_t mask = (std::uint32_t{1} << half_bits_) - 1;
  std::int64_t at = i;
  do {
    auto left = static_cast<std::uint32_t>(at >> half_bits_);
    auto right = static_cast<std::uint32_t>(at) & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint32_t mixed = draw(seed_, stream_, number_, right, round)[0] & mask;
      const std::uint32_t next = left ^ mixed;
      left = right;
      right = next;
    }
    at = (static_cast<std::int64_t>(left) << half_bits_) | right;
  } while (at >= size_);
  return at;
}

}  // namespace tilefold
