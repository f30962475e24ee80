#include "trainer/generate.h"

#include <algorithm>
#include <numeric>

namespace tilefold {

Generator::Generator(const RunPlan& run, Arena& arena, Context ctx, std::int64_t vocab)
    : run_(run), arena_(arena), ctx_(ctx), logits_(static_cast<std::size_t>(vocab)) {
  if (arena.tensor(run.model->logits()).dtype == DType::f64) wide_logits_.resize(logits_.size());
}

std::span<const float> Generator::logits_after(std::span<const std::int32_t> tokens,
                                               std::int64_t start) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), static_cast<std::int32_t>(start));
  auto send = [&](TensorId id, const std::int32_t* from) {
    const Tensor whole = arena_.tensor(id);
    const Tensor part(whole.data, whole.dtype, {count});
    ctx_.device.copy_to_device(ctx_.stream, part.data, from, part.bytes());
    return part;
  };
  const Model::Inputs& inputs = run_.model->generate_inputs();
  Batch batch;
  batch.samples = 1;
  batch.seq = count;
  batch.max_document = count;
  batch.tokens = send(inputs.tokens, tokens.data());
  batch.positions = send(inputs.positions, positions_.data());
  run_.model->generate(ctx_, arena_, batch, start);

  const Tensor logits = arena_.tensor(run_.model->logits());
  void* to = wide_logits_.empty() ? static_cast<void*>(logits_.data()) : wide_logits_.data();
  ctx_.device.copy_to_host(ctx_.stream, to, logits.data,
                           static_cast<std::int64_t>(logits_.size()) * size_of(logits.dtype));
  ctx_.stream.synchronize();
  if (!wide_logits_.empty()) std::copy(wide_logits_.begin(), wide_logits_.end(), logits_.begin());
  return logits_;
}

std::vector<std::int32_t> Generator::operator()(std::span<const std::int32_t> prompt,
                                                std::int64_t count, Sampler& sampler,
                                                std::int64_t usable,
                                                FunctionRef<void(std::int32_t)> each) {
  std::vector<std::int32_t> made;
  std::int64_t cached = 0;
  std::span<const std::int32_t> next = prompt;
  while (static_cast<std::int64_t>(made.size()) < count) {
    const std::span<const float> logits = logits_after(next, cached);
    cached += static_cast<std::int64_t>(next.size());
    made.push_back(sampler(logits, usable, cached));
    each(made.back());
    next = std::span(made).last(1);
  }
  return made;
}

}  // namespace tilefold
