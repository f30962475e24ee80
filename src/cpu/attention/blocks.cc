#include "cpu/attention/blocks.h"

namespace tilefold::cpu {

// Row i sees a key of [j0, j1) when its first key is below j1 and its last at or above j0; both
// move up with i, by at most one.
Range Blocks::visitors(const Segment& document, std::int64_t t) const {
  const Range keys = tile(document, t);
  const std::int64_t offset = document.seq_k - document.seq_q;
  const std::int64_t farthest = document.seq_q + document.seq_k;  // keeps sums small
  const std::int64_t left = std::min(problem_.options.window_left, farthest);
  const std::int64_t right = std::min(effective_window_right(problem_.options), farthest);
  std::int64_t first = 0, last = document.seq_q - 1;
  if (right >= 0) first = std::max(first, keys.begin - offset - right);
  if (left >= 0) last = std::min(last, keys.end - 1 - offset + left);
  if (first > last || keys.size() <= 0) return {0, 0};
  return {(document.q_at + first) / tile_q_, (document.q_at + last) / tile_q_ + 1};
}

std::int64_t Blocks::document_of(std::int64_t at) const {
  std::int64_t low = 0, high = documents();  // the first document that ends behind `at`
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    const Segment x = document(middle);
    if (x.q_at + x.seq_q > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace tilefold::cpu
