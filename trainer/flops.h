// Floating-point operations of a training step, in the two conventions that are in use.
#pragma once

#include <cstdint>

#include "trainer/config.h"

namespace tilefold {

// A token, forward and backward: 6 a parameter (a tied table counts once), and for attention
//   full     12 layers width context
//   visible  12 layers width (keys that a query sees, on average): half of it when causal
struct FlopsPerToken {
  double full = 0, visible = 0;
};

FlopsPerToken flops_per_token(const ModelConfig& model, const AttentionConfig& attention,
                              std::int64_t parameters);

}  // namespace tilefold
