// Strategy `tiled`: a block of query rows of one head goes over all its key tiles; no score leaves
// the cache. Blocks are independent and go to whatever thread is free.
#include "cpu/attention/attention.h"
#include "cpu/attention/forward_sweep.h"

namespace tilefold::cpu {
namespace {

template <class T>
void forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice,
             AttentionTrace* trace) {
  using Real = accumulator_t<T>;
  const ForwardSweep<T> sweep(args, choice);
  const AttentionProblem& problem = sweep.problem();
  const Blocks& blocks = sweep.blocks();
  const std::int64_t d = problem.d;
  expect(static_cast<std::int64_t>(args.workspace.size() / sizeof(Real)) >=
             pool.threads() * sweep.worker_size(),
         "tiled attention: workspace");

  pool.parallel_for(problem.batch * problem.heads * blocks.blocks(), [&](std::int64_t item,
                                                                         int worker) {
    const std::int64_t head = item / blocks.blocks(), block = blocks.nth(item % blocks.blocks());
    const auto x = sweep.head(head / problem.heads, head % problem.heads);
    const auto o = rows_of<T>(args.o, head / problem.heads, head % problem.heads);
    Real* const m = args.m.as<Real>() + head * problem.seq_q;  // [seq_q]
    Real* const l = args.l.as<Real>() + head * problem.seq_q;  // [seq_q]
    const ForwardScratch<Real> scratch = sweep.scratch(worker);

    blocks.for_each_segment(block, [&](const Segment& s) {
      const Range tiles = blocks.tiles(s);
      sweep.run(s, x, tiles, scratch);
      store_panels(sweep.kernels(), scratch.o, d, scratch.l, o, s.at, s.rows, scratch.rows);
      std::copy_n(scratch.m, s.rows, m + s.at);
      std::copy_n(scratch.l, s.rows, l + s.at);
      if (trace) trace->tiles += tiles.size();
    });
    const Range rows = blocks.rows(block);
    clear_rows(o, m, l, std::max(rows.begin, blocks.end_q()), rows.end, d);
  });
}

}  // namespace

void tiled_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice,
                   AttentionTrace* trace) {
  for_float_dtype(args.q.dtype, [&]<class T>(Type<T>) { forward<T>(pool, args, choice, trace); });
}

}  // namespace tilefold::cpu
