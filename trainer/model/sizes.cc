#include "trainer/model/sizes.h"

#include "base/error.h"

namespace tilefold {
namespace {

constexpr std::int64_t kMaxLayers = 20000;  // three dropout sites a layer, below 65536

template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) throw UsageError(str("model.", parts...));
}

std::int64_t default_ffn_width(ModelStyle style, std::int64_t width) {
  if (style == ModelStyle::gpt2) return 4 * width;
  return (8 * width / 3 + 63) / 64 * 64;
}

}  // namespace

Sizes resolve(const ModelConfig& config, const AttentionConfig& attention) {
  Sizes s;
  s.style = config.style;
  s.layers = config.layers;
  s.width = config.width;
  s.heads = config.heads;
  s.kv_heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
  s.ffn = config.ffn_width > 0 ? config.ffn_width : default_ffn_width(config.style, config.width);
  s.context = config.context;
  s.vocab = config.vocab;
  check(1 <= s.layers && s.layers <= kMaxLayers, "layers is ", s.layers, "; allowed: 1 to ",
        kMaxLayers);
  check(s.width >= 1, "width is ", s.width, "; allowed: 1 and above");
  check(s.heads >= 1 && s.width % s.heads == 0, "heads is ", s.heads,
        "; allowed: a divisor of width ", s.width);
  check(s.heads % s.kv_heads == 0, "kv_heads is ", s.kv_heads, "; allowed: a divisor of heads ",
        s.heads);
  check(s.context >= 1, "context is ", s.context, "; allowed: 1 and above");
  check(s.vocab >= 1, "vocab is ", s.vocab, "; allowed: 1 and above (0 takes what the data has)");
  s.d = s.width / s.heads;
  check(s.d <= 256, "heads is ", s.heads, ", a head width of ", s.d, "; allowed: 1 to 256");
  check(!s.llama() || s.d % 2 == 0, "heads is ", s.heads, ", a head width of ", s.d,
        "; allowed with rotary positions (style llama): an even one");

  check(config.dtype == DType::f32 || config.dtype == DType::bf16 || config.dtype == DType::f64,
        "dtype is ", name_of(config.dtype),
        "; allowed: f32, bf16, f64 (f16 needs loss scaling, which is not offered)");
  check(config.residual_dtype == DType::f32 || config.residual_dtype == DType::bf16 ||
            config.residual_dtype == DType::f64,
        "residual_dtype is ", name_of(config.residual_dtype), "; allowed: f32, bf16, f64");
  s.dtype = config.dtype;
  s.sum_dtype = sum_dtype(config.dtype);
  s.residual_dtype = config.dtype == DType::f64 ? DType::f64 : config.residual_dtype;

  s.tied = config.tie_embeddings;
  s.bias = config.bias;
  s.dropout = static_cast<float>(config.dropout);
  check(!s.llama() || !s.bias, "bias is true; allowed with style llama: false");
  check(config.dropout >= 0 && config.dropout < 1, "dropout is ", config.dropout,
        "; allowed: 0 and above, below 1");
  check(!s.llama() || s.dropout == 0, "dropout is ", s.dropout, "; allowed with style llama: 0");
  s.norm_eps = static_cast<float>(config.norm_eps);
  s.rope_base = config.rope_base;
  s.init_deviation = config.init_deviation;

  s.attention.causal = true;
  s.attention.window_left = attention.window[0];
  s.attention.window_right = 0;
  s.attention.softcap = static_cast<float>(attention.softcap);
  s.attention.deterministic = attention.deterministic;
  s.strategy = attention.strategy;
  return s;
}

}  // namespace tilefold
