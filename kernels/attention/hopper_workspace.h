// Where the Hopper kernels' workspace keeps what.
#pragma once

#include <cstdint>

#include "contract/attention.h"
#include "kernels/attention/hopper_tiles.h"

namespace tilefold::attention {

constexpr std::int64_t kForwardWorkspace = 256;  // the job counter

// Offsets in bytes; each part starts at a multiple of 256.
struct BackwardWorkspace {
  std::int64_t rows, tiles_of_head;  // query rows a tile; tiles that a head has room for
  std::int64_t next_job, stats, turn, dq_sum, bytes;

  explicit BackwardWorkspace(const AttentionProblem& p) {
    const std::int64_t width = padded_width(p.d);
    rows = width == 64 ? BackwardTiles<64>::kRows : BackwardTiles<128>::kRows;
    tiles_of_head = attention::tiles_of_head(rows, p.seq_q, p.documents);
    const std::int64_t tiles = p.batch * p.heads * tiles_of_head;
    std::int64_t end = 0;
    const auto part = [&end](std::int64_t size) {
      const std::int64_t begin = end;
      end += (size + 255) / 256 * 256;
      return begin;
    };
    next_job = part(8);
    stats = part(tiles * (2 * rows + 4) * 4);
    turn = part(width <= 128 ? tiles * 4 : 0);
    dq_sum = part(width <= 128 ? tiles * rows * width * 4 : 0);
    bytes = end;
  }
};

}  // namespace tilefold::attention
