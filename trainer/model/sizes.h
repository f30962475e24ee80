// The sizes of a model, worked out from its config once, and the numbering of its steps.
#pragma once

#include <cstdint>

#include "contract/attention.h"
#include "contract/norm.h"
#include "trainer/config.h"

namespace tilefold {

struct Sizes {
  ModelStyle style = ModelStyle::llama;
  std::int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, d = 0, ffn = 0, context = 0,
               vocab = 0;
  DType dtype = DType::f32;           // of weights and activations
  DType residual_dtype = DType::f32;  // of the residual stream and its gradient
  DType sum_dtype = DType::f32;       // of gradients, moments, row statistics and losses
  bool tied = true;                   // the head reads the token table
  bool bias = false;
  float dropout = 0;
  float norm_eps = 1e-5f;
  double rope_base = 10000;
  double init_deviation = 0.02;
  AttentionOptions attention;  // without strategy and dropout, which depend on the phase
  AttentionStrategy strategy = AttentionStrategy::automatic;

  bool llama() const { return style == ModelStyle::llama; }
  NormKind norm() const { return llama() ? NormKind::rms : NormKind::layer; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * d; }
  std::int64_t up_width() const { return llama() ? 2 * ffn : ffn; }  // gate and up, or pre-GELU
  // Without dropout, a branch's gradient is the residual stream's: no copy where the dtypes agree.
  bool branch_gradient_is_residual() const { return dropout == 0 && dtype == residual_dtype; }
};

// Throws UsageError where the model cannot be built.
Sizes resolve(const ModelConfig& config, const AttentionConfig& attention);

// Steps of a pass: embedding, each layer's attention and feed-forward half, the head (with loss and
// its gradient), then backwards the same way. A second forward pass of a phase starts at `first`.
struct Timeline {
  int layers = 0;
  int first = 0;

  int embedding() const { return first; }
  int attention(int layer) const { return first + 1 + 2 * layer; }
  int mlp(int layer) const { return first + 2 + 2 * layer; }
  int head() const { return first + 2 * layers + 1; }
  int mlp_backward(int layer) const { return head() + 1 + 2 * (layers - 1 - layer); }
  int attention_backward(int layer) const { return mlp_backward(layer) + 1; }
  int embedding_backward() const { return head() + 1 + 2 * layers; }
};

// Which dropout of the model: the site of contract/dropout.h.
constexpr std::uint32_t kEmbeddingSite = 0;
constexpr std::uint32_t attention_site(int layer) {
  return 1 + 3 * static_cast<std::uint32_t>(layer);
}
constexpr std::uint32_t attention_branch_site(int layer) { return attention_site(layer) + 1; }
constexpr std::uint32_t mlp_branch_site(int layer) { return attention_site(layer) + 2; }

}  // namespace tilefold
