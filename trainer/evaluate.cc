#include "trainer/evaluate.h"

#include <algorithm>

namespace tilefold {

Evaluator::Evaluator(Communicator& comm, const Dataset& data, const RunPlan& run, Arena& arena,
                     Context ctx, std::int64_t batch)
    : comm_(comm),
      data_(data),
      run_(run),
      arena_(arena),
      ctx_(ctx),
      batch_(batch),
      host_(ctx.device, batch * data.context(), batch * data.most_documents()) {
  const auto tokens = static_cast<std::size_t>(batch * data.context());
  losses_.resize(tokens);
  predictions_.resize(tokens);
  if (arena.tensor(run.model->eval_losses()).dtype == DType::f64) wide_losses_.resize(tokens);
}

Evaluation Evaluator::operator()(std::int64_t samples) {
  Evaluation sums;
  const EvaluationLoader loader(data_, samples, batch_, comm_.rank(), comm_.size());
  for (std::int64_t i = 0; i < loader.batches(); ++i) {
    const BatchInfo info = loader.fill(i, host_.arrays());
    const Batch batch =
        host_.upload(ctx_, arena_, run_.model->eval_inputs(), info, data_.context());
    run_.model->evaluate(ctx_, arena_, batch);
    const auto tokens = static_cast<std::size_t>(info.samples * data_.context());
    const Tensor losses = arena_.tensor(run_.model->eval_losses());
    void* to = wide_losses_.empty() ? static_cast<void*>(losses_.data()) : wide_losses_.data();
    ctx_.device.copy_to_host(ctx_.stream, to, losses.data,
                             static_cast<std::int64_t>(tokens) * size_of(losses.dtype));
    ctx_.device.copy_to_host(ctx_.stream, predictions_.data(),
                             arena_.tensor(run_.model->eval_predictions()).data,
                             static_cast<std::int64_t>(tokens) * 4);
    ctx_.stream.synchronize();
    if (!wide_losses_.empty()) std::copy_n(wide_losses_.begin(), tokens, losses_.begin());
    sums.add({losses_.data(), tokens}, {predictions_.data(), tokens},
             host_.arrays().targets.first(tokens), host_.arrays().positions.first(tokens));
  }
  comm_.all_reduce_sum(sums.values());
  return sums;
}

}  // namespace tilefold
