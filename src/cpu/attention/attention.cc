// The door from the backend table to the kernel that was chosen.
#include "cpu/attention/attention.h"

#include "cpu/ops.h"
#include "cpu/reference/attention.h"

namespace tilefold::cpu {
namespace {

// The reference, one (batch, kv head) at a time on each thread.
template <class Args>
void naive(ThreadPool& pool, const Args& args,
           void (*kernel)(const Args&, std::int64_t, std::int64_t, std::span<std::byte>,
                          reference::Terms)) {
  const AttentionProblem problem = problem_of(args);
  const auto scratch = args.workspace.size() / static_cast<std::size_t>(pool.threads()) / 64 * 64;
  pool.parallel_for(problem.batch * problem.kv_heads, [&](std::int64_t unit, int worker) {
    kernel(args, unit / problem.kv_heads, unit % problem.kv_heads,
           args.workspace.subspan(static_cast<std::size_t>(worker) * scratch, scratch),
           reference::Terms::as_they_are);
  });
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args,
                       const AttentionChoice& choice) {
  ThreadPool& pool = pool_of(stream);
  switch (choice.strategy) {
    case AttentionStrategy::naive:
      return naive<AttentionForward>(pool, args, reference::attention_forward);
    case AttentionStrategy::split:
      return split_forward(pool, args, choice);
    case AttentionStrategy::decode:
      return decode_forward(pool, args, choice);
    default:
      return tiled_forward(pool, args, choice);
  }
}

void attention_backward(Stream& stream, const AttentionBackward& args,
                        const AttentionChoice& choice) {
  ThreadPool& pool = pool_of(stream);
  if (choice.strategy == AttentionStrategy::naive)
    naive<AttentionBackward>(pool, args, reference::attention_backward);
  else
    tiled_backward(pool, args, choice);
}

}  // namespace tilefold::cpu
