// What the plan says of a model: figures that can be worked out by hand, and the first weights.
#include <cmath>
#include <map>
#include <set>

#include "tests/catch.h"
#include "tests/trainer/model_harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

ModelConfig large_config(std::int64_t context) {
  ModelConfig c;
  c.layers = 2;
  c.width = 4096;
  c.heads = 16;
  c.ffn_width = 10240;
  c.context = context;
  c.vocab = 256;
  c.dtype = DType::bf16;
  c.residual_dtype = DType::bf16;
  return c;
}

Plan train_plan(const ModelConfig& config, AttentionStrategy strategy, std::int64_t samples = 1) {
  AttentionConfig attention;
  attention.strategy = strategy;
  Model model(config, attention, describe_device("cpu"));
  PlanBuilder builder;
  model.declare_weights(builder, true);
  model.declare_train(builder, {.samples = samples, .seq = config.context});
  return builder.build();
}

// Bytes of a layer's saved tensors by name.
std::map<std::string, std::int64_t> saved(const Plan& plan, const std::string& layer) {
  std::map<std::string, std::int64_t> bytes;
  for (const PlannedTensor& t : plan.tensors())
    if (t.layer == layer && t.kind == Kind::saved) bytes[t.name] += t.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("the naive score matrix: 512 MiB a layer and batch element at n 4096, 16 heads, 16 bit") {
  const Plan plan = train_plan(large_config(4096), AttentionStrategy::naive, 3);
  for (const char* layer : {"layer 0", "layer 1"})
    CHECK(saved(plan, layer).at("probabilities") == 3 * (std::int64_t{512} << 20));
  CHECK(saved(train_plan(large_config(4096), AttentionStrategy::tiled), "layer 0")
            .count("probabilities") == 0);
}

TEST_CASE("keys and values of a layer: 1.95 GiB at 128000 positions, width 4096, 16 bit") {
  const Plan plan = train_plan(large_config(128000), AttentionStrategy::tiled);
  const std::int64_t qkv = saved(plan, "layer 0").at("qkv");
  CHECK(static_cast<double>(qkv) * 2 / 3 / (1 << 30) == Approx(1.95).margin(0.005));
}

TEST_CASE("attention saves q, k, v, o and 8 bytes a head for each token; a constant share in n") {
  std::map<std::int64_t, double> share, naive_share;
  for (std::int64_t n : {1024, 4096, 65536}) {
    ModelConfig config = large_config(n);
    config.kv_heads = 4;
    auto bytes = saved(train_plan(config, AttentionStrategy::tiled), "layer 1");
    CHECK(bytes.at("qkv") == n * (16 + 2 * 4) * 256 * 2);
    CHECK(bytes.at("o") == n * 16 * 256 * 2);
    CHECK(bytes.at("m") + bytes.at("l") == n * 16 * 8);
    const auto ratio = [](std::map<std::string, std::int64_t>& b) {
      const std::int64_t attention = b["qkv"] + b["o"] + b["m"] + b["l"] + b["probabilities"];
      return static_cast<double>(attention) / static_cast<double>(b["gate_up"] + b["act"]);
    };
    share[n] = ratio(bytes);
    auto naive = saved(train_plan(config, AttentionStrategy::naive), "layer 1");
    naive_share[n] = ratio(naive);
  }
  CHECK(share[1024] == share[4096]);
  CHECK(share[4096] == share[65536]);
  CHECK(naive_share[4096] > 2 * naive_share[1024]);
  CHECK(naive_share[65536] > 10 * naive_share[4096]);
}

TEST_CASE("documents that cannot be cost no memory") {
  ModelConfig config = large_config(1024);
  config.heads = 32;  // of 128
  const auto bytes = [&](std::int64_t documents) {
    Model model(config, {}, describe_device("h200"));
    PlanBuilder builder;
    model.declare_weights(builder, true);
    model.declare_train(builder, {.samples = 8, .seq = 1024, .documents = documents});
    return builder.build().arena_bytes();
  };
  // Up to some documents a sample the workspace lies below the peak; one a token is far above.
  CHECK(bytes(8) <= bytes(80));
  CHECK(bytes(80) < bytes(800));
  CHECK(bytes(800) < bytes(8 * 1024));
  CHECK(bytes(8 * 1024) - bytes(80) > std::int64_t{7} << 30);
}

TEST_CASE("16-bit models plan masters, float32 gradients and moments; inference plans none") {
  ModelConfig config = tiny_config(ModelStyle::llama);
  config.dtype = DType::bf16;
  for (bool training : {true, false}) {
    Model model(config, {}, describe_device("cpu"));
    PlanBuilder builder;
    model.declare_weights(builder, training);
    const Plan plan = builder.build();
    const std::int64_t n = model.parameter_count();
    const KindTotals totals = plan.totals();
    const std::int64_t rope = config.context * 4 * 4;
    CHECK(totals.bytes[static_cast<int>(Kind::weight)] == 2 * n + rope);
    CHECK(totals.bytes[static_cast<int>(Kind::gradient)] == (training ? 4 * n : 0));
    CHECK(totals.bytes[static_cast<int>(Kind::optimizer)] == (training ? 12 * n : 0));
    for (const Parameter& p : model.parameters()) {
      CHECK(p.decay == (p.shape.rank == 2));
      CHECK((p.master == kNoTensor) == !training);
    }
  }
}

TEST_CASE("a micro-batch's lives leave few holes") {
  for (ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2}) {
    ModelConfig config = large_config(1024);
    config.style = style;
    config.layers = 12;
    const Plan plan = train_plan(config, AttentionStrategy::tiled);
    CHECK(plan.totals().sum() == plan.arena_bytes());
    CHECK(plan.totals().padding < plan.scratch_bytes() / 50);
  }
}

TEST_CASE("first weights: deviations, ones, zeros; the same whatever the dtype and threads") {
  ModelConfig config = tiny_config(ModelStyle::gpt2);
  CHECK(config.init_deviation == 0.02);
  config.init_deviation = 0.03;
  config.dtype = DType::f32;
  config.width = 64;
  config.ffn_width = 256;
  config.vocab = 500;
  Options one;
  one.threads = 1;
  Harness h(config, one);
  ModelConfig wide = config;
  wide.dtype = DType::f64;
  Harness h64(wide, one);
  for (std::size_t k = 0; k < h.model.parameters().size(); ++k) {
    const Parameter& p = h.model.parameters()[k];
    INFO(p.layer << "/" << p.name);
    const std::vector<double> values = h.values(p.master);
    CHECK(values == h64.values(h64.model.parameters()[k].master));
    double sum = 0, squares = 0;
    for (double x : values) {
      sum += x;
      squares += x * x;
    }
    const double n = static_cast<double>(values.size());
    if (p.shape.rank == 1) {
      CHECK(sum == (p.name.find("bias") == std::string::npos ? n : 0));
      continue;
    }
    const bool residual = p.name == "out" || p.name == "down";
    const double deviation = config.init_deviation * (residual ? 1 / std::sqrt(4.0) : 1);
    CHECK(std::sqrt(squares / n) == Approx(deviation).epsilon(5 / std::sqrt(n)));
    CHECK(std::abs(sum / n) < 5 * deviation / std::sqrt(n));
    CHECK(std::set<double>(values.begin(), values.end()).size() > 0.99 * n);  // none drawn twice
  }
  Harness again(config, one);
  const auto first = h.values(h.model.parameters()[0].master);
  CHECK(first == again.values(again.model.parameters()[0].master));
  again.model.initialize(again.context(), *again.arena, 2);
  CHECK(first != again.values(again.model.parameters()[0].master));
}

TEST_CASE("the first loss is that of guessing") {
  for (ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2}) {
    ModelConfig config = tiny_config(style);
    config.dtype = DType::f32;
    Harness h(config);
    CHECK(h.evaluate() / 17 == Approx(std::log(11.0)).epsilon(0.02));  // one of 18 has no target
  }
}
