// Gradients with the scores made again, tile by tile. Per block of query rows and head
//
//   D = sum_c dO O                          dQ^T = 0
//   for each visible tile:  S^T = K (scale Q)^T     dP^T = V dO^T
//                           P^T = exp(S^T - m) / l          dS^T = P^T (dP^T - D)
//                           dQ^T += K^T dS^T
//                           in turn:  dV += P^T dO      dK += dS^T (scale Q)
//   dq = scale dQ
//
// One pass, five products a tile. dK and dV sum over blocks and over the heads of a group: blocks
// add to a tile's sums in the order of their numbers, whatever thread runs them, so the bits are
// fixed. A block waits for its turn only after its own products are done, and blocks start in
// order, so threads follow one another through the tiles and hardly wait; the first unfinished
// block never does. Two passes (dK and dV, then dQ) would need no turns, but seven products.
#include <atomic>
#include <thread>

#include "cpu/attention/attention.h"
#include "cpu/attention/blocks.h"
#include "cpu/attention/keep.h"
#include "cpu/attention/rows.h"
#include "kernels/attention/cpu_scratch.h"

namespace tilefold::cpu {
namespace {

template <class Real>
struct Scratch {
  // Shapes: cpu_scratch::Backward.
  Real *q, *d_o, *dq, *q_columns, *d_o_columns, *p, *ds, *keep, *k, *v, *rows, *m, *inverse_l,
      *delta, *inverse_scale, *one;
  Scratch(Real* base, const cpu_scratch::Backward& x)
      : q(base + x.q),
        d_o(base + x.d_o),
        dq(base + x.dq),
        q_columns(base + x.q_columns),
        d_o_columns(base + x.d_o_columns),
        p(base + x.p),
        ds(base + x.ds),
        keep(base + x.keep),
        k(base + x.k),
        v(base + x.v),
        rows(base + x.rows),
        m(base + x.m),
        inverse_l(base + x.inverse_l),
        delta(base + x.delta),
        inverse_scale(base + x.inverse_scale),
        one(base + x.one) {}
};

// Eight partial sums: short chains, and the compiler can keep them in registers.
template <class Real>
Real dot(const Real* x, const Real* y, std::int64_t d) {
  Real sum[8] = {};
  std::int64_t c = 0;
  for (; c + 8 <= d; c += 8)
    for (int i = 0; i < 8; ++i) sum[i] += x[c + i] * y[c + i];
  for (int i = 0; c < d; ++c, ++i) sum[i] += x[c] * y[c];
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// y[c / 32][n][c % 32] = factor * x[n][c], 0 where c >= d; rows of a group of columns are tile_q.
template <class Real>
void to_columns(const Real* x, std::int64_t d, std::int64_t padded_d, Real factor,
                std::int64_t rows, std::int64_t tile_q, Real* y) {
  for (std::int64_t c0 = 0; c0 < padded_d; c0 += kPanel, y += tile_q * kPanel) {
    const std::int64_t count = std::min(kPanel, d - c0);
    for (std::int64_t n = 0; n < rows; ++n) {
      for (std::int64_t c = 0; c < count; ++c) y[n * kPanel + c] = factor * x[n * d + c0 + c];
      for (std::int64_t c = count; c < kPanel; ++c) y[n * kPanel + c] = 0;
    }
  }
}

template <class T>
class Backward {
 public:
  using Real = accumulator_t<T>;

  Backward(const AttentionBackward& args, const AttentionChoice& choice, int workers)
      : args_(args),
        problem_(problem_of(args)),
        blocks_(problem_, args.documents, choice.tile_q, choice.tile_k),
        kernels_(tile_kernels<Real>()),
        layout_(choice.tile_q, choice.tile_k, problem_.d, args.options.dropout.p > 0),
        sums_(problem_, choice.tile_k, workers, sizeof(Real)),
        tile_q_(choice.tile_q),
        tile_k_(choice.tile_k),
        group_(problem_.heads / problem_.kv_heads),
        scale_(static_cast<Real>(effective_scale(args.options, problem_.d))),
        cap_(static_cast<Real>(args.options.softcap)),
        scratch_(reinterpret_cast<Real*>(args.workspace.data())),
        shared_(scratch_ + workers * layout_.total),
        visits_(reinterpret_cast<std::int64_t*>(shared_ + sums_.visits)) {
    expect(static_cast<std::int64_t>(args.workspace.size()) >=
               (workers * layout_.total + sums_.total) * static_cast<std::int64_t>(sizeof(Real)),
           "attention backward: workspace");
    std::fill_n(visits_, sums_.slots * sums_.tiles, 0);
  }

  std::int64_t units() const { return problem_.batch * problem_.kv_heads; }
  std::int64_t items() const { return units() * group_ * blocks_.blocks(); }

  // Key rows that no query sees get zeros.
  void zero_unseen(std::int64_t unit) const {
    const std::int64_t batch = unit / problem_.kv_heads, kv_head = unit % problem_.kv_heads;
    const auto zero = [&](std::int64_t begin, std::int64_t end) {
      zero_rows(rows_of<T>(args_.dk, batch, kv_head), begin, end, problem_.d);
      zero_rows(rows_of<T>(args_.dv, batch, kv_head), begin, end, problem_.d);
    };
    for (std::int64_t n = 0; n < blocks_.documents(); ++n) {
      const Segment x = blocks_.document(n);
      for (std::int64_t t = 0; t < blocks_.tiles_of_document(x); ++t)
        if (blocks_.visitors(x, t).size() == 0)
          zero(x.k_at + blocks_.tile(x, t).begin, x.k_at + blocks_.tile(x, t).end);
    }
    zero(blocks_.end_k(), problem_.seq_k);
  }

  // One block of query rows of one head. Returns the number of tiles visited.
  std::int64_t run(std::int64_t item, int worker) const {
    Place x;
    x.unit = item / (group_ * blocks_.blocks());
    x.member = item / blocks_.blocks() % group_;
    x.block = blocks_.nth(item % blocks_.blocks());
    const std::int64_t batch = x.unit / problem_.kv_heads, kv_head = x.unit % problem_.kv_heads;
    const std::int64_t head = kv_head * group_ + x.member;
    x.q = rows_of<T>(args_.q, batch, head);
    x.o = rows_of<T>(args_.o, batch, head);
    x.d_o = rows_of<T>(args_.d_o, batch, head);
    x.dq = rows_of<T>(args_.dq, batch, head);
    x.k = rows_of<T>(args_.k, batch, kv_head);
    x.v = rows_of<T>(args_.v, batch, kv_head);
    x.dk = rows_of<T>(args_.dk, batch, kv_head);
    x.dv = rows_of<T>(args_.dv, batch, kv_head);
    x.m = args_.m.template as<Real>() + (batch * problem_.heads + head) * problem_.seq_q;
    x.l = args_.l.template as<Real>() + (batch * problem_.heads + head) * problem_.seq_q;
    const Keep<Real> keep(args_.options.dropout, batch, problem_.seq_q, head,
                          problem_.documents > 0);
    const Scratch<Real> scratch(scratch_ + worker * layout_.total, layout_);

    std::int64_t visited = 0;
    blocks_.for_each_segment(x.block, [&](const Segment& s) {
      load(s, x, scratch);
      const Range tiles = blocks_.tiles(s);
      for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
        const Range keys = blocks_.tile(s, t);
        const auto k = rows_in_place(x.k, s.k_at + keys.begin, keys.size(), problem_.d, scratch.k);
        const auto v = rows_in_place(x.v, s.k_at + keys.begin, keys.size(), problem_.d, scratch.v);
        for (std::int64_t row = 0; row < s.rows; row += kPanel)
          panel(s, keys, k, v, row, keep, scratch);
        add_in_turn(s, t, keys, x, scratch);
      }
      store_panels(kernels_, scratch.dq, problem_.d, scratch.inverse_scale, x.dq, s.at, s.rows,
                   scratch.rows);
      visited += tiles.size();
    });
    const Range rows = blocks_.rows(x.block);
    zero_rows(x.dq, std::max(rows.begin, blocks_.end_q()), rows.end, problem_.d);
    return visited;
  }

 private:
  struct Place {
    std::int64_t unit, member, block;  // (batch, kv head); query head within its group
    Rows<const T> q, o, d_o, k, v;     // [seq, d]
    Rows<T> dq, dk, dv;                // [seq, d]
    const Real *m, *l;                 // [seq_q]
  };

  // Everything of the query rows, in the layouts of the products.
  void load(const Segment& s, const Place& x, const Scratch<Real>& to) const {
    const std::int64_t d = problem_.d, padded = cpu_scratch::round_up(s.rows, kPanel);
    load_panels(kernels_, x.q, s.at, s.rows, d, scale_, to.rows, to.q);
    load_panels(kernels_, x.d_o, s.at, s.rows, d, Real(1), to.rows, to.d_o);
    std::fill_n(to.dq, padded * d, Real(0));
    std::fill_n(to.q_columns, cpu_scratch::round_up(d, kPanel) * tile_q_, Real(0));
    std::fill_n(to.d_o_columns, cpu_scratch::round_up(d, kPanel) * tile_q_, Real(0));
    for (std::int64_t row = 0; row < s.rows; row += kPanel) {
      const std::int64_t rows = std::min(kPanel, s.rows - row);
      Real *wide = to.rows, *other = to.rows + kPanel * d;
      load_rows(x.q, s.at + row, rows, d, wide);
      to_columns(wide, d, layout_.padded_d, scale_, rows, tile_q_, to.q_columns + row * kPanel);
      load_rows(x.d_o, s.at + row, rows, d, wide);
      to_columns(wide, d, layout_.padded_d, Real(1), rows, tile_q_, to.d_o_columns + row * kPanel);
      load_rows(x.o, s.at + row, rows, d, other);
      for (std::int64_t n = 0; n < rows; ++n)
        to.delta[row + n] = dot(wide + n * d, other + n * d, d);
    }
    for (std::int64_t n = 0; n < padded; ++n) {
      const bool live = n < s.rows && x.l[s.at + n] != 0;  // sees a key
      to.m[n] = live ? x.m[s.at + n] : 0;
      to.inverse_l[n] = live ? 1 / x.l[s.at + n] : Real(0);
      if (!live) to.delta[n] = 0;
    }
    std::fill_n(to.inverse_scale, padded, 1 / scale_);
    std::fill_n(to.one, kPanel, Real(1));
  }

  // P^T and dS^T of the segment's rows [row, row + 32), zeros at keys that none of them sees, and
  // their share of dQ^T.
  void panel(const Segment& s, const Range& tile, Rows<const Real> k, Rows<const Real> v,
             std::int64_t row, const Keep<Real>& keep, const Scratch<Real>& x) const {
    const std::int64_t d = problem_.d, rows = std::min(kPanel, s.rows - row);
    Real *p = x.p + row * tile_k_, *ds = x.ds + row * tile_k_;
    const Range seen = blocks_.keys(s, row, rows), common = blocks_.common_keys(s, row, rows);
    const Range keys{std::clamp(seen.begin, tile.begin, tile.end),
                     std::clamp(seen.end, tile.begin, tile.end)};
    const std::int64_t skipped = keys.begin - tile.begin,
                       count = std::max<std::int64_t>(0, keys.size());
    for (Real* zeroed : {p, ds}) {
      std::fill_n(zeroed, skipped * kPanel, Real(0));
      std::fill(zeroed + (skipped + count) * kPanel, zeroed + tile.size() * kPanel, Real(0));
    }
    if (count == 0) return;
    p += skipped * kPanel;
    ds += skipped * kPanel;

    scores(kernels_, count, d, k[skipped], k.stride, x.q + row * d, p);
    scores(kernels_, count, d, v[skipped], v.stride, x.d_o + row * d, ds);
    if (cap_ > 0) kernels_.soften(p, count, cap_);
    if (common.begin > keys.begin || common.end < keys.end)
      hide(kernels_, blocks_, s, row, rows, keys, p);
    if (keep.on())
      keep.fill(s.at + row, s.at + row + rows, s.k_at + keys.begin, s.k_at + keys.end, x.keep);
    kernels_.differentiate(p, ds, count, x.m + row, x.inverse_l + row, x.delta + row,
                           keep.on() ? x.keep : nullptr, cap_);
    kernels_.accumulate(d, count, k[skipped], k.stride, ds, x.dq + row * d, x.one);
  }

  // dV += P^T dO and dK += dS^T (scale Q) of one tile, after the blocks before this one.
  void add_in_turn(const Segment& s, std::int64_t t, const Range& keys, const Place& x,
                   const Scratch<Real>& scratch) const {
    const Range visitors = blocks_.visitors(s, t);
    const std::int64_t first = std::min(blocks_.nth(visitors.begin), blocks_.nth(visitors.end - 1));
    const std::int64_t place = blocks_.nth(x.block) - first;
    const std::int64_t turns = group_ * visitors.size(), turn = x.member * visitors.size() + place;
    const std::int64_t slot = x.unit % sums_.slots, round = x.unit / sums_.slots;
    const std::atomic_ref<std::int64_t> visits(
        visits_[slot * sums_.tiles + blocks_.tile_number(s, t)]);
    for (int spins = 0; visits.load(std::memory_order_acquire) != round * turns + turn; ++spins)
      if (spins > 64) std::this_thread::yield();

    const std::int64_t padded_d = layout_.padded_d;
    const std::int64_t at = (slot * problem_.seq_k + s.k_at + keys.begin) * padded_d;
    const std::int64_t panels = (s.rows + kPanel - 1) / kPanel;
    const auto add = [&](const Real* weights, const Real* columns, Real* sums) {
      for (std::int64_t c = 0; c < padded_d; c += kPanel)
        kernels_.products(keys.size(), std::min(kPanel, padded_d - c), kPanel, weights, kPanel,
                          panels, tile_k_ * kPanel, columns + c * tile_q_, sums + c, padded_d,
                          turn > 0);
    };
    add(scratch.p, scratch.d_o_columns, shared_ + sums_.dv + at);
    add(scratch.ds, scratch.q_columns, shared_ + sums_.dk + at);
    if (turn == turns - 1) {
      store(shared_ + sums_.dv + at, x.dv, s.k_at + keys.begin, keys.size());
      store(shared_ + sums_.dk + at, x.dk, s.k_at + keys.begin, keys.size());
    }
    visits.store(round * turns + turn + 1, std::memory_order_release);
  }

  void store(const Real* sums, const Rows<T>& to, std::int64_t first, std::int64_t rows) const {
    for (std::int64_t n = 0; n < rows; ++n)
      for (std::int64_t c = 0; c < problem_.d; ++c)
        to[first + n][c] = T(sums[n * layout_.padded_d + c]);
  }

  const AttentionBackward& args_;
  AttentionProblem problem_;
  Blocks blocks_;
  const TileKernels<Real>& kernels_;
  cpu_scratch::Backward layout_;
  cpu_scratch::BackwardSums sums_;
  std::int64_t tile_q_, tile_k_, group_;
  Real scale_, cap_;
  Real* scratch_;         // [workers] of layout_
  Real* shared_;          // sums_
  std::int64_t* visits_;  // [slots][tiles]
};

}  // namespace

void tiled_backward(ThreadPool& pool, const AttentionBackward& args, const AttentionChoice& choice,
                    AttentionTrace* trace) {
  for_float_dtype(args.q.dtype, [&]<class T>(Type<T>) {
    const Backward<T> backward(args, choice, pool.threads());
    pool.parallel_for(backward.units(),
                      [&](std::int64_t unit, int) { backward.zero_unseen(unit); });
    pool.parallel_for(backward.items(), [&](std::int64_t item, int worker) {
      const std::int64_t visited = backward.run(item, worker);
      if (trace) trace->tiles += visited;
    });
  });
}

}  // namespace tilefold::cpu
