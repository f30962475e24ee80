// Text from a model: prefill of the prompt, then one token at a time over the key/value cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "trainer/run_plan.h"
#include "trainer/sampling.h"

namespace tilefold {

// One sequence. `run` has the phase of generation for one sample, `arena` holds weights.
class Generator {
 public:
  // Ids at or beyond `usable` (padding of the vocabulary) are never made.
  Generator(const RunPlan& run, Arena& arena, Context ctx, std::int64_t vocab, std::int64_t usable);

  // Logits [vocab] after the last of `tokens`, which follow the `start` tokens already in the
  // cache. Valid until the next call. On a GPU one token's work is recorded the second time and
  // replayed from then on.
  std::span<const float> logits_after(std::span<const std::int32_t> tokens, std::int64_t start);

  // The first of the largest of them, found on the device: 4 bytes to the host. Throws Error when a
  // logit is NaN.
  std::int32_t likeliest_after(std::span<const std::int32_t> tokens, std::int64_t start);

  // `count` tokens after the prompt, drawn by `sampler`; `each` sees them as they come. REQUIRES:
  // the prompt is not empty; prompt + count fits the cache.
  std::vector<std::int32_t> operator()(std::span<const std::int32_t> prompt, std::int64_t count,
                                       Sampler& sampler, FunctionRef<void(std::int32_t)> each);

 private:
  // What a pass ends with, on the host: logits_, or the likeliest token in step_.
  enum class Result : std::uint8_t { logits, likeliest };
  struct Recorded {
    std::int64_t calls = 0;  // of one()
    std::unique_ptr<Recording> recording;
  };
  // Through the model to the result, waited for.
  void run(std::span<const std::int32_t> tokens, std::int64_t start, Result result);
  void many(std::span<const std::int32_t> tokens, std::int64_t start);
  void one(std::int32_t token, std::int64_t place, Result result);
  void fetch(Result result);

  const RunPlan& run_;
  Arena& arena_;
  Context ctx_;
  std::int64_t vocab_, usable_;
  std::vector<float> narrow_logits_;     // [vocab] where the model computes in f64
  std::vector<std::int32_t> positions_;  // scratch
  std::unique_ptr<Memory> logits_;       // [vocab], as the device computes them
  std::unique_ptr<Memory> step_;         // [6] i32: Model::Inputs::decode
  Recorded recorded_[2];                 // by Result
};

}  // namespace tilefold
