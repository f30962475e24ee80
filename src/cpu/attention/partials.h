// Partial results over parts of the key axis, and their sum: a part p leaves for each query row
// m_p, l_p and O_p (not divided), and
//
//   m = max_p m_p     l = sum_p exp(m_p - m) l_p     o = sum_p exp(m_p - m) O_p / l
//
// which is the rescaling of the streaming softmax with parts in place of tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/attention/attention.h"
#include "cpu/attention/forward_sweep.h"

namespace tilefold::cpu {

template <class Real>
struct Partials {
  Real *o, *m, *l;  // [parts][rows][d], [parts][rows], [parts][rows]; rows: [batch, heads, seq_q]
  std::int64_t parts, rows, d;
  Partials(Real* base, const cpu_scratch::Partials& x)
      : o(base + x.o), m(base + x.m), l(base + x.l), parts(x.parts), rows(x.rows), d(x.d) {}
};

// Part p of `parts` of a run of tiles.
inline Range part_of(const Range& tiles, std::int64_t part, std::int64_t parts) {
  return {tiles.begin + tiles.size() * part / parts,
          tiles.begin + tiles.size() * (part + 1) / parts};
}

// One query row, number `row` of the partials. Returns l; leaves m and o * l in the first part.
template <class Real>
Real combine_row(const Partials<Real>& x, std::int64_t row) {
  Real* const o = x.o + row * x.d;  // [d]
  Real &m = x.m[row], &l = x.l[row];
  for (std::int64_t p = 1; p < x.parts; ++p) {
    const std::int64_t at = p * x.rows + row;
    const Real top = std::max(m, x.m[at]);
    if (top == -std::numeric_limits<Real>::infinity()) continue;
    const Real old = std::exp(m - top), added = std::exp(x.m[at] - top);
    for (std::int64_t c = 0; c < x.d; ++c) o[c] = o[c] * old + x.o[at * x.d + c] * added;
    l = l * old + x.l[at] * added;
    m = top;
  }
  return l;
}

// All rows: o, m and l of the arguments.
template <class T>
void combine(ThreadPool& pool, const AttentionForward& args, const Blocks& blocks,
             const Partials<accumulator_t<T>>& x) {
  using Real = accumulator_t<T>;
  const std::int64_t seq_q = args.q.shape[1], heads = args.q.shape[2], d = args.q.shape[3];
  pool.parallel_for(args.q.shape[0] * heads * blocks.blocks(), [&](std::int64_t item, int) {
    const std::int64_t head = item / blocks.blocks();
    const auto o = rows_of<T>(args.o, head / heads, head % heads);
    Real* const m = args.m.as<Real>() + head * seq_q;  // [seq_q]
    Real* const l = args.l.as<Real>() + head * seq_q;  // [seq_q]
    const Range rows = blocks.rows(item % blocks.blocks());
    for (std::int64_t i = rows.begin; i < std::min(rows.end, blocks.end_q()); ++i) {
      const std::int64_t row = head * seq_q + i;
      l[i] = combine_row(x, row);
      m[i] = x.m[row];
      for (std::int64_t c = 0; c < d; ++c) o[i][c] = l[i] == 0 ? T(0) : T(x.o[row * d + c] / l[i]);
    }
    clear_rows(o, m, l, std::max(rows.begin, blocks.end_q()), rows.end, d);
  });
}

}  // namespace tilefold::cpu
