// Where documents lie and which tiles see each other; the same on host and device.
//
// Query i of a document sees key j when i + off - left <= j <= i + off + right, off = seq_k -
// seq_q.
#pragma once

#include <cstdint>

namespace tilefold::attention {

constexpr std::int64_t kUnlimited = 1ll << 40;

struct Window {
  std::int64_t left, right;  // kUnlimited for no limit
};

// Prefix sums of packed documents, or one document that is the whole sequence.
struct Documents {
  const void* q = nullptr;  // [count + 1] int32 or int64; null: not packed
  const void* k = nullptr;
  bool wide_q = false, wide_k = false;  // int64
  int count = 1;                        // documents, or 1
};

// One document's rows.
struct Extent {
  int q_begin, q_count, k_begin, k_count;
};

// First to last, both inside; none when last < first.
struct Range {
  int first, last;
};

__host__ __device__ inline std::int64_t offset_at(const void* offsets, bool wide, int i) {
  return wide ? static_cast<const std::int64_t*>(offsets)[i]
              : static_cast<const std::int32_t*>(offsets)[i];
}

__host__ __device__ inline Extent extent_of(const Documents& documents, int document, int seq_q,
                                            int seq_k) {
  if (documents.q == nullptr) return {0, seq_q, 0, seq_k};
  const auto q = static_cast<int>(offset_at(documents.q, documents.wide_q, document));
  const auto k = static_cast<int>(offset_at(documents.k, documents.wide_k, document));
  return {q, static_cast<int>(offset_at(documents.q, documents.wide_q, document + 1)) - q, k,
          static_cast<int>(offset_at(documents.k, documents.wide_k, document + 1)) - k};
}

__host__ __device__ inline std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
__host__ __device__ inline std::int64_t most(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

// Keys that some query of rows visible to; rows are clipped to the document.
__host__ __device__ inline Range keys_seen(const Extent& at, const Window& window, int row,
                                           int rows) {
  const std::int64_t off = static_cast<std::int64_t>(at.k_count) - at.q_count;
  const std::int64_t last_row = least(row + rows, at.q_count) - 1;
  if (last_row < row) return {0, -1};
  return {static_cast<int>(least(most(row + off - window.left, 0), at.k_count)),
          static_cast<int>(most(least(last_row + off + window.right, at.k_count - 1), -1))};
}

// Keys that all queries of the rows see.
__host__ __device__ inline Range keys_seen_by_all(const Extent& at, const Window& window, int row,
                                                  int rows) {
  const std::int64_t off = static_cast<std::int64_t>(at.k_count) - at.q_count;
  const std::int64_t last_row = least(row + rows, at.q_count) - 1;
  return {static_cast<int>(least(most(last_row + off - window.left, 0), at.k_count)),
          static_cast<int>(most(least(row + off + window.right, at.k_count - 1), -1))};
}

// Queries that see some of the keys.
__host__ __device__ inline Range queries_seeing(const Extent& at, const Window& window, int key,
                                                int keys) {
  const std::int64_t off = static_cast<std::int64_t>(at.k_count) - at.q_count;
  const std::int64_t last_key = least(key + keys, at.k_count) - 1;
  if (last_key < key) return {0, -1};
  return {static_cast<int>(least(most(key - off - window.right, 0), at.q_count)),
          static_cast<int>(most(least(last_key - off + window.left, at.q_count - 1), -1))};
}

// Queries that see all of the keys; none lies on either side where there are none.
__host__ __device__ inline Range queries_seeing_all(const Extent& at, const Window& window, int key,
                                                    int keys) {
  const std::int64_t off = static_cast<std::int64_t>(at.k_count) - at.q_count;
  const std::int64_t last_key = static_cast<std::int64_t>(key) + keys - 1;
  if (last_key >= at.k_count)
    return {at.q_count, -1};  // a tile beyond the keys is never seen whole
  return {static_cast<int>(least(most(last_key - off - window.right, 0), at.q_count)),
          static_cast<int>(most(least(key - off + window.left, at.q_count - 1), -1))};
}

// The window about one document's diagonal in 32 bits: query i sees key j when
//   i + off - left <= j <= i + off + right      0 <= j < k_count
// Limits beyond the document are cut to it, so that no sum here leaves 32 bits.
struct Diagonal {
  int off, left, right;
};

__host__ __device__ inline Diagonal diagonal_of(const Extent& at, const Window& window) {
  return {at.k_count - at.q_count, static_cast<int>(least(window.left, most(at.k_count - 1, 0))),
          static_cast<int>(least(window.right, most(at.q_count - 1, 0)))};
}

}  // namespace tilefold::attention
