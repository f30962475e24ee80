// How an attention problem falls into blocks of query rows and tiles of keys.
//
// The query rows of a head are cut every tile_q rows, wherever documents begin; a block is worked
// through document by document (a segment is one document's rows in a block). The keys of a
// document are cut every tile_k keys from its first. A block visits a key tile if one of its rows
// sees one of the tile's keys: for causal attention the tiles below and on the diagonal, no others.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/attention.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {

// Rows [first, first + rows) of a document, `at` being the first one's place in the sequence; the
// document has seq_q query rows, and seq_k keys from place k_at on.
struct Segment {
  std::int64_t document = 0;
  std::int64_t at = 0, rows = 0, first = 0;
  std::int64_t q_at = 0, seq_q = 0, k_at = 0, seq_k = 0;
};

// [begin, end)
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

class Blocks {
 public:
  // REQUIRES: tile_q is a multiple of 32, tile_k >= 1.
  Blocks(const AttentionProblem& problem, const PackedDocuments& documents, std::int64_t tile_q,
         std::int64_t tile_k)
      : problem_(problem), documents_(documents), tile_q_(tile_q), tile_k_(tile_k) {}

  std::int64_t blocks() const { return (problem_.seq_q + tile_q_ - 1) / tile_q_; }
  std::int64_t documents() const { return packed() ? problem_.documents : 1; }
  Range rows(std::int64_t block) const {
    return {block * tile_q_, std::min((block + 1) * tile_q_, problem_.seq_q)};
  }
  // Rows behind the last document begin here.
  std::int64_t end_q() const { return packed() ? q_offset(documents()) : problem_.seq_q; }
  std::int64_t end_k() const { return packed() ? k_offset(documents()) : problem_.seq_k; }

  // Calls body(segment) for each document with rows in the block.
  template <class Body>
  void for_each_segment(std::int64_t block, Body&& body) const {
    const std::int64_t begin = block * tile_q_;
    const std::int64_t end = std::min(begin + tile_q_, end_q());
    for (std::int64_t x = document_of(begin), at = begin; at < end; ++x) {
      Segment s = document(x);
      s.at = at;
      s.rows = std::min(end, s.q_at + s.seq_q) - at;
      s.first = at - s.q_at;
      if (s.rows > 0) body(s);
      at += s.rows;
    }
  }

  // A document as a segment of no rows.
  Segment document(std::int64_t x) const {
    if (!packed()) return {0, 0, 0, 0, 0, problem_.seq_q, 0, problem_.seq_k};
    return {x,           0,
            0,           0,
            q_offset(x), q_offset(x + 1) - q_offset(x),
            k_offset(x), k_offset(x + 1) - k_offset(x)};
  }

  Segment whole_document(std::int64_t x) const {
    Segment s = document(x);
    s.at = s.q_at;
    s.rows = s.seq_q;
    return s;
  }

  // Keys of the document that some of the segment's rows [row, row + rows) see.
  Range keys(const Segment& s, std::int64_t row, std::int64_t rows) const {
    return {visible(s, row).begin, visible(s, row + rows - 1).end};
  }
  // Keys that all of them see.
  Range common_keys(const Segment& s, std::int64_t row, std::int64_t rows) const {
    return {visible(s, row + rows - 1).begin, visible(s, row).end};
  }
  KeyRange visible(const Segment& s, std::int64_t row) const {
    return visible_keys(problem_.options, s.first + row, s.seq_q, s.seq_k);
  }

  // Key tiles that the segment visits.
  Range tiles(const Segment& s) const {
    const Range seen = keys(s, 0, s.rows);
    if (seen.begin >= seen.end) return {0, 0};
    return {seen.begin / tile_k_, (seen.end + tile_k_ - 1) / tile_k_};
  }
  // The keys of a tile.
  Range tile(const Segment& s, std::int64_t t) const {
    return {t * tile_k_, std::min((t + 1) * tile_k_, s.seq_k)};
  }
  // The blocks that visit key tile t of a document.
  Range visitors(const Segment& document, std::int64_t t) const;
  // A number for key tile t of a document, below cpu_scratch::BackwardSums::tiles.
  std::int64_t tile_number(const Segment& document, std::int64_t t) const {
    return document.k_at / tile_k_ + document.document + t;
  }
  std::int64_t tiles_of_document(const Segment& document) const {
    return (document.seq_k + tile_k_ - 1) / tile_k_;
  }

  // The order in which threads take up blocks: the last one first where later blocks see more keys,
  // so that the short ones fill the end. It is its own inverse.
  std::int64_t nth(std::int64_t n) const {
    return effective_window_right(problem_.options) >= 0 ? blocks() - 1 - n : n;
  }

 private:
  bool packed() const { return bool(documents_.cu_seqlens_q); }
  static std::int64_t offset(const ConstTensor& cu, std::int64_t x) {
    return cu.dtype == DType::i32 ? static_cast<const std::int32_t*>(cu.data)[x]
                                  : static_cast<const std::int64_t*>(cu.data)[x];
  }
  std::int64_t q_offset(std::int64_t x) const { return offset(documents_.cu_seqlens_q, x); }
  std::int64_t k_offset(std::int64_t x) const { return offset(documents_.cu_seqlens_k, x); }
  // The document that holds query row `at`, or the number of documents.
  std::int64_t document_of(std::int64_t at) const;

  AttentionProblem problem_;
  PackedDocuments documents_;
  std::int64_t tile_q_, tile_k_;
};

// Sets the scores [keys][32] of the segment's rows [row, row + rows) to -inf where a key is hidden.
template <class Real>
void hide(const TileKernels<Real>& kernels, const Blocks& blocks, const Segment& s,
          std::int64_t row, std::int64_t rows, const Range& keys, Real* scores) {
  std::int32_t first[kPanel] = {}, last[kPanel] = {};
  for (std::int64_t n = 0; n < rows; ++n) {
    const KeyRange seen = blocks.visible(s, row + n);
    first[n] = static_cast<std::int32_t>(std::clamp(seen.begin, keys.begin, keys.end) - keys.begin);
    last[n] = static_cast<std::int32_t>(std::clamp(seen.end, keys.begin, keys.end) - keys.begin);
  }
  kernels.hide(scores, keys.size(), first, last);
}

}  // namespace tilefold::cpu
