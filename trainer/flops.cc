#include "trainer/flops.h"

#include "contract/attention.h"

namespace tilefold {

FlopsPerToken flops_per_token(const ModelConfig& model, const AttentionConfig& attention,
                              std::int64_t parameters) {
  AttentionProblem head;  // one head of one sequence
  head.seq_q = head.seq_k = model.context;
  head.options.causal = true;
  head.options.window_left = attention.window[0];
  const auto context = static_cast<double>(model.context);
  const double products = 6 * static_cast<double>(parameters);
  const double a_key = 12 * static_cast<double>(model.layers) * static_cast<double>(model.width);
  return {.full = products + a_key * context,
          .visible = products + a_key * visible_pairs(head) / context};
}

}  // namespace tilefold
