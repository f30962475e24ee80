#include "kernels/attention/select.h"

#include "base/error.h"
#include "kernels/attention/cpu_scratch.h"

namespace tilefold {
namespace {

std::int64_t cpu_workspace(const AttentionProblem& x, const AttentionChoice& choice, int workers) {
  const std::int64_t real = x.dtype == DType::f64 ? 8 : 4;
  const bool dropout = x.options.dropout.p > 0;
  if (choice.strategy == AttentionStrategy::naive)
    return workers * cpu_scratch::naive_bytes(x);
  if (x.backward)
    return real * (workers *
                       cpu_scratch::Backward(choice.tile_q, choice.tile_k, x.d, dropout).total +
                   cpu_scratch::BackwardSums(x, choice.tile_k, workers, real).total);
  return real * workers * cpu_scratch::Forward(choice.tile_q, choice.tile_k, x.d, dropout).total;
}

AttentionChoice select_cpu(const AttentionProblem& problem, const DeviceInfo& device) {
  AttentionChoice choice;
  choice.strategy = problem.options.strategy == AttentionStrategy::naive ? AttentionStrategy::naive
                                                                         : AttentionStrategy::tiled;
  choice.tile_q = 128;
  choice.tile_k = 128;
  choice.workspace_bytes = cpu_workspace(problem, choice, device.processors);
  return choice;
}

}  // namespace

AttentionChoice select_attention(const AttentionProblem& problem, const DeviceInfo& device) {
  require(device.kind == DeviceKind::cpu, "attention: no kernel for ", device.name);
  return select_cpu(problem, device);
}

std::string explain_attention(const AttentionProblem& problem, const DeviceInfo& device) {
  const AttentionChoice choice = select_attention(problem, device);
  return str(name_of(choice.strategy), " tile_q ", choice.tile_q, " tile_k ", choice.tile_k,
             " workspace ", choice.workspace_bytes, " bytes\n");
}

}  // namespace tilefold
