// Strategy `split`: as `tiled`, with the key tiles of a block dealt out in parts, for problems
// whose query blocks are too few for the threads.
#include "cpu/attention/attention.h"
#include "cpu/attention/partials.h"

namespace tilefold::cpu {
namespace {

template <class T>
void forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice) {
  using Real = accumulator_t<T>;
  const ForwardSweep<T> sweep(args, choice);
  const AttentionProblem& problem = sweep.problem();
  const Blocks& blocks = sweep.blocks();
  const std::int64_t d = problem.d;
  const std::int64_t before = pool.threads() * sweep.worker_size();
  const cpu_scratch::Partials layout(problem, choice.splits);
  expect(static_cast<std::int64_t>(args.workspace.size() / sizeof(Real)) >= before + layout.total,
         "split attention: workspace");
  const Partials<Real> partials(reinterpret_cast<Real*>(args.workspace.data()) + before, layout);

  pool.parallel_for(problem.batch * problem.heads * blocks.blocks() * choice.splits,
                    [&](std::int64_t item, int worker) {
                      const std::int64_t part = item % choice.splits, which = item / choice.splits;
                      const std::int64_t head = which / blocks.blocks(),
                                         block = blocks.nth(which % blocks.blocks());
                      const auto x = sweep.head(head / problem.heads, head % problem.heads);
                      const ForwardScratch<Real> scratch = sweep.scratch(worker);
                      const std::int64_t first =
                          part * partials.rows + head * problem.seq_q;  // row 0 of this head
                      const Rows<Real> o{partials.o + first * d, d};

                      blocks.for_each_segment(block, [&](const Segment& s) {
                        sweep.run(s, x, part_of(blocks.tiles(s), part, choice.splits), scratch);
                        std::copy_n(scratch.m, s.rows, partials.m + first + s.at);
                        std::copy_n(scratch.l, s.rows, partials.l + first + s.at);
                        std::fill_n(scratch.l, cpu_scratch::round_up(s.rows, kPanel), Real(1));
                        store_panels(sweep.kernels(), scratch.o, d, scratch.l, o, s.at, s.rows,
                                     scratch.rows);
                      });
                    });
  combine<T>(pool, args, blocks, partials);
}

}  // namespace

void split_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice) {
  for_float_dtype(args.q.dtype, [&]<class T>(Type<T>) { forward<T>(pool, args, choice); });
}

}  // namespace tilefold::cpu
