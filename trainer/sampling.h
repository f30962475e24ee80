// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tilefold {

struct SamplingOptions {
  double temperature = 1;  // 0: greedy (the first of the largest)
  std::int64_t top_k = 0;  // draw from the k most likely; 0: from all
  std::uint64_t seed = 1;
};

// Throws Error: the logit of a token after position `n` is NaN.
[[noreturn]] void refuse_nan(std::int64_t token, std::int64_t n);

// p_v = exp((z_v - max z) / temperature) over the kept tokens, normalized. The draw for position n
// is a function of seed and n alone (Philox). Not thread-safe: keeps its scratch.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::int64_t vocab);

  bool greedy() const { return options_.temperature == 0; }
  // The token after position `n`, from its logits [vocab]; ids at or beyond `usable` (padding of
  // the vocabulary) are never drawn. Throws Error when a logit is NaN.
  std::int32_t operator()(std::span<const float> logits, std::int64_t usable, std::int64_t n);

 private:
  SamplingOptions options_;
  std::vector<std::int32_t> order_;  // [vocab]
  std::vector<double> weights_;      // [vocab]
};

}  // namespace tilefold
