#include "io/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tilefold {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <class T>
std::uint64_t load(const std::byte* from) {  // little-endian, as all that we run on
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

void Checksum::consume(const std::byte* stripe) {
  for (std::size_t i = 0; i < 4; ++i)
    lanes_[i] = round(lanes_[i], load<std::uint64_t>(stripe + 8 * i));
}

void Checksum::add(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (rest_bytes_ > 0) {
    const std::size_t n = std::min(kStripe - rest_bytes_, bytes.size());
    std::copy_n(bytes.begin(), n, rest_.begin() + static_cast<std::ptrdiff_t>(rest_bytes_));
    rest_bytes_ += n;
    bytes = bytes.subspan(n);
    if (rest_bytes_ < kStripe) return;
    consume(rest_.data());
    rest_bytes_ = 0;
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) consume(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_bytes_ = bytes.size();
}

std::uint64_t Checksum::value() const {
  std::uint64_t hash = kPrime5;
  if (total_ >= kStripe) {
    constexpr int kTurns[4] = {1, 7, 12, 18};
    hash = 0;
    for (std::size_t i = 0; i < 4; ++i) hash += std::rotl(lanes_[i], kTurns[i]);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const std::byte* at = rest_.data();
  const std::byte* const end = at + rest_bytes_;
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ load<std::uint8_t>(at) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace tilefold
