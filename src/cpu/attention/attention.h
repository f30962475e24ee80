// The attention kernels of the CPU, one per strategy, and what they share.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/float_types.h"
#include "contract/attention.h"
#include "cpu/stream.h"
#include "kernels/attention/select.h"

namespace tilefold::cpu {

// What a run did, for tests: tiles are counted by the kernel as it visits them.
struct AttentionTrace {
  std::atomic<std::int64_t> tiles{0};  // (block of tile_q queries, tile of tile_k keys), all heads
};

void tiled_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice,
                   AttentionTrace* trace = nullptr);
void split_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice);
void decode_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice);
void tiled_backward(ThreadPool& pool, const AttentionBackward& args, const AttentionChoice& choice,
                    AttentionTrace* trace = nullptr);

}  // namespace tilefold::cpu
