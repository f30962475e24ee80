// The streaming softmax of one block of query rows over a run of key tiles; `tiled` gives it all
// tiles of a row, `split` a part of them.
//
//   m = -inf, l = 0, O = 0
//   for each tile:  S = scale Q K^T;  cap, hide;  m, l, P, factor = fold(S);  O = factor O + P V
//
// A row's m, l and O depend, to the bit, on its own query, its visible keys, tile_k and the run of
// tiles only: not on threads, tile_q, batch or neighbours.
#pragma once

#include <limits>

#include "cpu/attention/blocks.h"
#include "cpu/attention/keep.h"
#include "cpu/attention/rows.h"
#include "kernels/attention/cpu_scratch.h"
#include "kernels/attention/select.h"

namespace tilefold::cpu {

// Where one worker keeps its block.
template <class Real>
struct ForwardScratch {
  Real *q, *o, *s, *keep, *k, *v, *rows, *m, *l, *factor;  // shapes: cpu_scratch::Forward
  ForwardScratch(Real* base, const cpu_scratch::Forward& x)
      : q(base + x.q),
        o(base + x.o),
        s(base + x.s),
        keep(base + x.keep),
        k(base + x.k),
        v(base + x.v),
        rows(base + x.rows),
        m(base + x.m),
        l(base + x.l),
        factor(base + x.factor) {}
};

template <class T>
class ForwardSweep {
 public:
  using Real = accumulator_t<T>;

  // One query head: rows of its inputs, and the dropout of its probabilities.
  struct Head {
    Rows<const T> q, k, v;  // [seq, d]
    Keep<Real> keep;
  };

  ForwardSweep(const AttentionForward& args, const AttentionChoice& choice)
      : args_(args),
        problem_(problem_of(args)),
        blocks_(problem_, args.documents, choice.tile_q, choice.tile_k),
        kernels_(tile_kernels<Real>()),
        layout_(choice.tile_q, choice.tile_k, problem_.d, args.options.dropout.p > 0),
        scale_(static_cast<Real>(effective_scale(args.options, problem_.d))),
        cap_(static_cast<Real>(args.options.softcap)) {}

  const AttentionProblem& problem() const { return problem_; }
  const Blocks& blocks() const { return blocks_; }
  const TileKernels<Real>& kernels() const { return kernels_; }
  std::int64_t worker_size() const { return layout_.total; }  // in Reals

  ForwardScratch<Real> scratch(int worker) const {
    return {reinterpret_cast<Real*>(args_.workspace.data()) + worker * layout_.total, layout_};
  }

  Head head(std::int64_t batch, std::int64_t head) const {
    const std::int64_t kv_head = head / (problem_.heads / problem_.kv_heads);
    return {rows_of<T>(args_.q, batch, head), rows_of<T>(args_.k, batch, kv_head),
            rows_of<T>(args_.v, batch, kv_head),
            Keep<Real>(args_.options.dropout, batch, problem_.seq_q, head, problem_.documents > 0)};
  }

  // Leaves m, l and O^T (not divided by l) of the segment's rows in scratch.
  void run(const Segment& s, const Head& x, const Range& tiles,
           const ForwardScratch<Real>& scratch) const {
    const std::int64_t d = problem_.d, padded = cpu_scratch::round_up(s.rows, kPanel);
    load_panels(kernels_, x.q, s.at, s.rows, d, scale_, scratch.rows, scratch.q);
    std::fill_n(scratch.o, padded * d, Real(0));
    std::fill_n(scratch.m, padded, -std::numeric_limits<Real>::infinity());
    std::fill_n(scratch.l, padded, Real(0));
    for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
      const Range keys = blocks_.tile(s, t);
      const auto k = rows_in_place(x.k, s.k_at + keys.begin, keys.size(), d, scratch.k);
      const auto v = rows_in_place(x.v, s.k_at + keys.begin, keys.size(), d, scratch.v);
      for (std::int64_t row = 0; row < s.rows; row += kPanel) panel(s, x, keys, k, v, row, scratch);
    }
  }

 private:
  // The segment's rows [row, row + 32) against the tile's keys.
  void panel(const Segment& s, const Head& x, const Range& tile, Rows<const Real> k,
             Rows<const Real> v, std::int64_t row, const ForwardScratch<Real>& scratch) const {
    const std::int64_t d = problem_.d, rows = std::min(kPanel, s.rows - row);
    const Range seen = blocks_.keys(s, row, rows), common = blocks_.common_keys(s, row, rows);
    // From a multiple of 4 on: see fold().
    const std::int64_t skipped = std::max<std::int64_t>(0, seen.begin - tile.begin) / 4 * 4;
    const Range keys{tile.begin + skipped, std::min(tile.end, seen.end)};
    if (keys.size() <= 0) return;

    scores(kernels_, keys.size(), d, k[skipped], k.stride, scratch.q + row * d, scratch.s);
    if (cap_ > 0) kernels_.soften(scratch.s, keys.size(), cap_);
    if (common.begin > keys.begin || common.end < keys.end)
      hide(kernels_, blocks_, s, row, rows, keys, scratch.s);
    kernels_.fold(scratch.s, keys.size(), scratch.m + row, scratch.l + row, scratch.factor);
    if (x.keep.on()) {
      x.keep.fill(s.at + row, s.at + row + rows, s.k_at + keys.begin, s.k_at + keys.end,
                  scratch.keep);
      kernels_.drop(scratch.s, scratch.keep, keys.size());
    }
    kernels_.accumulate(d, keys.size(), v[skipped], v.stride, scratch.s, scratch.o + row * d,
                        scratch.factor);
  }

  const AttentionForward& args_;
  AttentionProblem problem_;
  Blocks blocks_;
  const TileKernels<Real>& kernels_;
  cpu_scratch::Forward layout_;
  Real scale_, cap_;
};

// Query rows [begin, end) of a head that belong to no document.
template <class T, class Real>
void clear_rows(const Rows<T>& o, Real* m, Real* l, std::int64_t begin, std::int64_t end,
                std::int64_t d) {
  zero_rows(o, begin, end, d);
  for (std::int64_t i = begin; i < end; ++i) {
    m[i] = -std::numeric_limits<Real>::infinity();
    l[i] = 0;
  }
}

}  // namespace tilefold::cpu
