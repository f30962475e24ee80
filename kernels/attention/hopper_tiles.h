// Rows of the table for the Hopper kernels: tiles by padded head width, with what they take of a
// multiprocessor (227 KiB of shared memory, 64 Ki registers). Nothing is spilled: with nvcc 13.0 a
// build fails where something is (kernels/CMakeLists.txt), and with any where shared memory or
// registers do not suffice. Plain C++: the choice, the plan and the kernels share it.
#pragma once

#include <cstdint>

namespace tilefold::attention {

// Forward: Q of this job and the next (at d 256 of one), stages of K and of V, and O on its way
// out. Registers of a consumer thread: scores, p packed, output.
//   d 64    64 + 32 + 32 of 160: three warpgroups of 64 rows; 200 KiB
//   d 128   64 + 32 + 64 of 232: two warpgroups; 224 KiB
//   d 256   32 + 16 + 128 of 232: two warpgroups; 224 KiB
// kNextEarly: Q and the first K of the next job are asked for before this one's last V.
template <int kWidth>
struct ForwardTiles;
template <>
struct ForwardTiles<64> {
  static constexpr int kGroups = 3, kKeys = 128, kStages = 4, kQueryStages = 2;
  static constexpr bool kNextEarly = false;
  static constexpr int kFeeder = 32, kConsumer = 160;
};
template <>
struct ForwardTiles<128> {
  static constexpr int kGroups = 2, kKeys = 128, kStages = 2, kQueryStages = 2;
  static constexpr bool kNextEarly = true;
  static constexpr int kFeeder = 40, kConsumer = 232;
};
template <>
struct ForwardTiles<256> {
  static constexpr int kGroups = 2, kKeys = 64, kStages = 2, kQueryStages = 1;
  static constexpr bool kNextEarly = false;
  static constexpr int kFeeder = 40, kConsumer = 232;
};

// Forward over parts of the keys: Q, the stages of K and of V, and 128 rows of partial O in float32.
//   d 64    64 + 32 + 32 of 232; 177 KiB
//   d 128   64 + 32 + 64 of 232; 226 KiB
template <int kWidth>
struct SplitTiles;
template <>
struct SplitTiles<64> {
  static constexpr int kKeys = 128, kStages = 4;
  static constexpr int kFeeder = 40, kConsumer = 232;
};
template <>
struct SplitTiles<128> {
  static constexpr int kKeys = 128, kStages = 2;
  static constexpr int kFeeder = 40, kConsumer = 232;
};
constexpr int kSplitMost = 16;  // blocks of a cluster, on this hardware

// Backward: K and V, two stages of Q and dO, two of dS, two of dQ on its way out: 224
// KiB at 64 and 128. Registers of a consumer thread, of 240: scores, dP, dK, dV; then p and dS
// packed, dQ.
//   d 64    64 + 64 + 32 + 32
//   d 128   32 + 32 + 64 + 64
template <int kWidth>
struct BackwardTiles;
template <>
struct BackwardTiles<64> {
  static constexpr int kRows = 128, kKeys = 128;
};
template <>
struct BackwardTiles<128> {
  static constexpr int kRows = 64, kKeys = 128;
};
// dK and dV of 64 keys, a warpgroup each: 128 registers a thread, with scores, p (or dS) packed and
// p from the other 32 + 16 + 32; K, V, two stages of Q and dO, two of p: 225 KiB. dQ of 64 queries
// a warpgroup 128 + 32 + 32 + 16; Q and dO of both, two stages of K, one of V: 224 KiB.
template <>
struct BackwardTiles<256> {
  static constexpr int kRows = 64, kKeys = 64;
};

// 64, 128 or 256: the width that d is padded to.
constexpr int padded_width(std::int64_t d) { return d <= 64 ? 64 : d <= 128 ? 128 : 256; }

// Query tiles over all heads that the backward's workspace has room for. documents 0: not packed.
constexpr std::int64_t tiles_of_head(std::int64_t rows, std::int64_t seq_q,
                                     std::int64_t documents) {
  return documents == 0 ? (seq_q + rows - 1) / rows : seq_q / rows + documents;
}

}  // namespace tilefold::attention
