// Which kernel computes an attention problem: one readable table per device kind, measured, and
// printable with `tilefold attention explain`. Plain C++, in every build, so that ops, plan and
// explain share it.
#pragma once

#include <cstdint>
#include <string>

#include "base/device_info.h"
#include "contract/attention.h"

namespace tilefold {

// Whose code runs: the CPU's, or a family of CUDA kernels (README.md).
enum class AttentionKernel : std::uint8_t { cpu, hopper, portable, naive, plain };

// One pick: what runs, with which tiles, and why.
struct AttentionChoice {
  AttentionStrategy strategy = AttentionStrategy::tiled;  // never automatic
  AttentionKernel kernel = AttentionKernel::cpu;
  std::int64_t tile_q = 0;           // query rows a block
  std::int64_t tile_k = 0;           // keys a tile
  std::int64_t splits = 1;           // partitions of the key axis (split, decode)
  std::int64_t workspace_bytes = 0;  // of the whole call
  const char* reason = "";  // of the row: accumulator bytes, fast memory, measured crossover
};

// Throws UsageError when options.strategy asks for one that cannot run this problem.
AttentionChoice select_attention(const AttentionProblem& problem, const DeviceInfo& device);

// The table and the pick for a problem, as text.
std::string explain_attention(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace tilefold
