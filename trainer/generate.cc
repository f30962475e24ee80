#include "trainer/generate.h"

#include <array>
#include <cstring>
#include <numeric>

#include "ops/ops.h"
#include "trainer/host_batch.h"

namespace tilefold {

Generator::Generator(const RunPlan& run, Arena& arena, Context ctx, std::int64_t vocab,
                     std::int64_t usable)
    : run_(run),
      arena_(arena),
      ctx_(ctx),
      vocab_(vocab),
      usable_(usable),
      logits_(ctx.device.allocate_host(vocab * size_of(arena.tensor(run.model->logits()).dtype))),
      step_(ctx.device.allocate_host(6 * sizeof(std::int32_t))) {}

std::span<const float> Generator::logits_after(std::span<const std::int32_t> tokens,
                                               std::int64_t start) {
  run(tokens, start, Result::logits);
  const auto count = static_cast<std::size_t>(vocab_);
  if (arena_.tensor(run_.model->logits()).dtype != DType::f64)
    return {reinterpret_cast<const float*>(logits_->data()), count};
  const auto* wide = reinterpret_cast<const double*>(logits_->data());
  narrow_logits_.assign(wide, wide + count);
  return narrow_logits_;
}

std::int32_t Generator::likeliest_after(std::span<const std::int32_t> tokens, std::int64_t start) {
  run(tokens, start, Result::likeliest);
  const auto id = *reinterpret_cast<const std::int32_t*>(step_->data());
  if (id < 0) refuse_nan(-1 - id, start + static_cast<std::int64_t>(tokens.size()));
  return id;
}

void Generator::run(std::span<const std::int32_t> tokens, std::int64_t start, Result result) {
  if (start > 0 && tokens.size() == 1 && ctx_.device.info().kind == DeviceKind::cuda) {
    one(tokens[0], start, result);
  } else {
    many(tokens, start);
    fetch(result);
  }
  ctx_.stream.synchronize();
}

void Generator::many(std::span<const std::int32_t> tokens, std::int64_t start) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), static_cast<std::int32_t>(start));
  const Model::Inputs& inputs = run_.model->generate_inputs();
  Batch batch;
  batch.samples = 1;
  batch.seq = count;
  batch.max_document = count;
  batch.tokens = upload(ctx_, arena_.tensor(inputs.tokens), tokens.data(), count);
  batch.positions = upload(ctx_, arena_.tensor(inputs.positions), positions_.data(), count);
  run_.model->generate(ctx_, arena_, batch, start);
}

void Generator::one(std::int32_t token, std::int64_t place, Result result) {
  const auto at = static_cast<std::int32_t>(place);
  const std::array<std::int32_t, 6> step{token, at, 0, 1, 0, at + 1};
  std::memcpy(step_->data(), step.data(), sizeof step);
  const auto work = [&] {
    const Tensor to = arena_.tensor(run_.model->generate_inputs().decode);
    ctx_.device.copy_to_device(ctx_.stream, to.data, step_->data(), to.bytes());
    run_.model->decode(ctx_, arena_);
    fetch(result);
  };
  Recorded& recorded = recorded_[static_cast<int>(result)];
  // The first time loads kernels and lets the matrix library choose, which no recording may do.
  if (recorded.calls++ == 0) return work();
  if (!recorded.recording) recorded.recording = ctx_.stream.record(work);
  recorded.recording->replay();
}

void Generator::fetch(Result result) {
  const Tensor logits = arena_.tensor(run_.model->logits());
  if (result == Result::logits)
    return ctx_.device.copy_to_host(ctx_.stream, logits_->data(), logits.data, logits_->bytes());
  // In place of the token that the model has read.
  const Tensor token = arena_.tensor(run_.model->generate_inputs().decode).sliced(0, 0, 1);
  ops::likeliest(ctx_, {.logits = logits.reshaped({vocab_}), .usable = usable_, .token = token});
  ctx_.device.copy_to_host(ctx_.stream, step_->data(), token.data, token.bytes());
}

std::vector<std::int32_t> Generator::operator()(std::span<const std::int32_t> prompt,
                                                std::int64_t count, Sampler& sampler,
                                                FunctionRef<void(std::int32_t)> each) {
  std::vector<std::int32_t> made;
  std::int64_t cached = 0;
  std::span<const std::int32_t> next = prompt;
  while (static_cast<std::int64_t>(made.size()) < count) {
    const std::int64_t place = cached;
    cached += static_cast<std::int64_t>(next.size());
    made.push_back(sampler.greedy() ? likeliest_after(next, place)
                                    : sampler(logits_after(next, place), usable_, cached));
    each(made.back());
    next = std::span(made).last(1);
  }
  return made;
}

}  // namespace tilefold
