// xxh64: a fast 64-bit checksum (Collet, "xxHash fast digest algorithm", format 1). Any change
// within one 8-byte word changes it. Against damage, not against intent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tilefold {

// Of bytes that come in pieces; how they are cut does not matter.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all bytes so far

 private:
  static constexpr std::size_t kStripe = 32;
  void consume(const std::byte* stripe);

  std::array<std::uint64_t, 4> lanes_{0x9E3779B185EBCA87u + 0xC2B2AE3D27D4EB4Fu,
                                      0xC2B2AE3D27D4EB4Fu, 0, 0 - 0x9E3779B185EBCA87u};
  std::array<std::byte, kStripe> rest_{};  // bytes of an unfinished stripe
  std::size_t rest_bytes_ = 0;
  std::uint64_t total_ = 0;
};

std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace tilefold
