// Streaming softmax over key tiles: no score leaves the cache. Per block of query rows and head
//
//   m = -inf, l = 0, O = 0
//   for each visible tile:  S = scale Q K^T;  cap, hide;  m, l, P, factor = fold(S);
//                           O = factor O + P V
//   o = O / l
//
// Blocks are independent and go to whatever thread is free. A row's bits depend on its own query,
// its visible keys and tile_k only: not on threads, tile_q, batch or neighbours.
#include <limits>

#include "cpu/attention/attention.h"
#include "cpu/attention/blocks.h"
#include "cpu/attention/keep.h"
#include "cpu/attention/rows.h"
#include "kernels/attention/cpu_scratch.h"

namespace tilefold::cpu {
namespace {

// Where one worker keeps its block.
template <class Real>
struct Scratch {
  Real *q, *o, *s, *keep, *k, *v, *rows, *m, *l, *factor;  // shapes: cpu_scratch::Forward
  Scratch(Real* base, const cpu_scratch::Forward& x)
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
class Forward {
 public:
  using Real = accumulator_t<T>;

  Forward(const AttentionForward& args, const AttentionChoice& choice)
      : args_(args),
        problem_(problem_of(args)),
        blocks_(problem_, args.documents, choice.tile_q, choice.tile_k),
        kernels_(tile_kernels<Real>()),
        layout_(choice.tile_q, choice.tile_k, problem_.d, args.options.dropout.p > 0),
        tile_q_(choice.tile_q),
        scale_(static_cast<Real>(effective_scale(args.options, problem_.d))),
        cap_(static_cast<Real>(args.options.softcap)) {}

  std::int64_t items() const { return problem_.batch * problem_.heads * blocks_.blocks(); }

  // One block of query rows of one head. Returns the number of tiles visited.
  std::int64_t run(std::int64_t item, int worker) const {
    const std::int64_t head = item / blocks_.blocks() % problem_.heads;
    const std::int64_t batch = item / blocks_.blocks() / problem_.heads;
    std::int64_t block = item % blocks_.blocks();
    if (blocks_.ascending()) block = blocks_.blocks() - 1 - block;

    const Scratch<Real> scratch(
        reinterpret_cast<Real*>(args_.workspace.data()) + worker * layout_.total, layout_);
    const Head x{rows_of<T>(args_.q, batch, head),
                 rows_of<T>(args_.k, batch, head / (problem_.heads / problem_.kv_heads)),
                 rows_of<T>(args_.v, batch, head / (problem_.heads / problem_.kv_heads)),
                 rows_of<T>(args_.o, batch, head),
                 args_.m.template as<Real>() + (batch * problem_.heads + head) * problem_.seq_q,
                 args_.l.template as<Real>() + (batch * problem_.heads + head) * problem_.seq_q,
                 Keep<Real>(args_.options.dropout, batch, problem_.seq_q, head,
                            problem_.documents > 0)};
    std::int64_t visited = 0;
    blocks_.for_each_segment(block, [&](const Segment& s) { visited += segment(s, x, scratch); });
    rest(block, x);
    return visited;
  }

 private:
  struct Head {
    Rows<const T> q, k, v;  // [seq, d]
    Rows<T> o;              // [seq_q, d]
    Real *m, *l;            // [seq_q]
    Keep<Real> keep;
  };

  std::int64_t segment(const Segment& s, const Head& x, const Scratch<Real>& scratch) const {
    const std::int64_t d = problem_.d;
    const std::int64_t padded = cpu_scratch::round_up(s.rows, kPanel);
    load_panels(kernels_, x.q, s.at, s.rows, d, scale_, scratch.rows, scratch.q);
    std::fill_n(scratch.o, padded * d, Real(0));
    std::fill_n(scratch.m, padded, -std::numeric_limits<Real>::infinity());
    std::fill_n(scratch.l, padded, Real(0));

    const Range tiles = blocks_.tiles(s);
    for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
      const Range keys = blocks_.tile(s, t);
      load_rows(x.k, s.k_at + keys.begin, keys.size(), d, scratch.k);
      load_rows(x.v, s.k_at + keys.begin, keys.size(), d, scratch.v);
      for (std::int64_t row = 0; row < s.rows; row += kPanel) panel(s, x, keys, row, scratch);
    }

    store_panels(kernels_, scratch.o, d, scratch.l, x.o, s.at, s.rows, scratch.rows);
    std::copy_n(scratch.m, s.rows, x.m + s.at);
    std::copy_n(scratch.l, s.rows, x.l + s.at);
    return tiles.size();
  }

  // The segment's rows [row, row + 32) against the tile's keys.
  void panel(const Segment& s, const Head& x, const Range& tile, std::int64_t row,
             const Scratch<Real>& scratch) const {
    const std::int64_t d = problem_.d, rows = std::min(kPanel, s.rows - row);
    const Range seen = blocks_.keys(s, row, rows), common = blocks_.common_keys(s, row, rows);
    // From a multiple of 4 on: see fold().
    const std::int64_t skipped = std::max<std::int64_t>(0, seen.begin - tile.begin) / 4 * 4;
    const Range keys{tile.begin + skipped, std::min(tile.end, seen.end)};
    if (keys.size() <= 0) return;

    kernels_.products(keys.size(), kPanel, d, scratch.k + skipped * d, d, 1, 0,
                      scratch.q + row * d, scratch.s, kPanel, false);
    if (cap_ > 0) kernels_.soften(scratch.s, keys.size(), cap_);
    if (common.begin > keys.begin || common.end < keys.end) 
      hide(kernels_, blocks_, s, row, rows, keys, scratch.s);
    kernels_.fold(scratch.s, keys.size(), scratch.m + row, scratch.l + row, scratch.factor);
    if (x.keep.on()) {
      x.keep.fill(s.at + row, s.at + row + rows, s.k_at + keys.begin, s.k_at + keys.end,
                  scratch.keep);
      kernels_.drop(scratch.s, scratch.keep, keys.size());
    }
    kernels_.accumulate(d, keys.size(), scratch.v + skipped * d, d, scratch.s, scratch.o + row * d,
                        scratch.factor);
  }

  // Rows of the block that belong to no document.
  void rest(std::int64_t block, const Head& x) const {
    const std::int64_t end = std::min((block + 1) * tile_q_, problem_.seq_q);
    const std::int64_t begin = std::max(block * tile_q_, blocks_.end_q());
    zero_rows(x.o, begin, end, problem_.d);
    for (std::int64_t i = begin; i < end; ++i) {
      x.m[i] = -std::numeric_limits<Real>::infinity();
      x.l[i] = 0;
    }
  }

  const AttentionForward& args_;
  AttentionProblem problem_;
  Blocks blocks_;
  const TileKernels<Real>& kernels_;
  cpu_scratch::Forward layout_;
  std::int64_t tile_q_;
  Real scale_, cap_;
};

}  // namespace

void tiled_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice,
                   AttentionTrace* trace) {
  with_storage_type(args.q.dtype, [&](auto type) {
    const Forward<decltype(type)> forward(args, choice);
    pool.parallel_for(forward.items(), [&](std::int64_t item, int worker) {
      const std::int64_t visited = forward.run(item, worker);
      if (trace) trace->tiles += visited;
    });
  });
}

}  // namespace tilefold::cpu
