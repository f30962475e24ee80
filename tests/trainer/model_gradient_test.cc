// Every gradient of the model against central differences, in float64.
#include <cmath>

#include "tests/catch.h"
#include "tests/trainer/model_harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

struct Case {
  const char* name;
  ModelStyle style;
  bool tied = true;
  std::int64_t kv_heads = 2;
  double dropout = 0;
  std::int64_t window = -1;
  double softcap = 0;
  bool packed = false;
  AttentionStrategy strategy = AttentionStrategy::automatic;
};

constexpr ModelStyle kLlama = ModelStyle::llama, kGpt2 = ModelStyle::gpt2;
const Case kCases[] = {
    {.name = "llama, tied, grouped heads", .style = kLlama},
    {.name = "llama, untied, one kv head", .style = kLlama, .tied = false, .kv_heads = 1},
    {.name = "llama, window, softcap", .style = kLlama, .kv_heads = 4, .window = 3, .softcap = 2},
    {.name = "llama, packed documents", .style = kLlama, .packed = true},
    {.name = "llama, naive", .style = kLlama, .strategy = AttentionStrategy::naive},
    {.name = "gpt2, tied", .style = kGpt2, .kv_heads = 4},
    {.name = "gpt2, untied, grouped heads", .style = kGpt2, .tied = false},
    {.name = "gpt2, dropout", .style = kGpt2, .kv_heads = 4, .dropout = 0.3},
    {.name = "gpt2, dropout, packed, window",
     .style = kGpt2,
     .dropout = 0.2,
     .window = 2,
     .packed = true},
    {.name = "gpt2, dropout, naive, softcap",
     .style = kGpt2,
     .dropout = 0.2,
     .softcap = 2,
     .strategy = AttentionStrategy::naive},
};

// Four-point central difference: error of order step^4.
double difference(Harness& h, double& x, double step) {
  const double at = x;
  const auto loss = [&](double offset) {
    x = at + offset;
    return h.train();
  };
  const double slope =
      (8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step);
  x = at;
  return slope;
}

}  // namespace

TEST_CASE("gradients of both styles agree with central differences") {
  for (const Case& c : kCases) {
    INFO(c.name);
    ModelConfig config = tiny_config(c.style);
    config.tie_embeddings = c.tied;
    config.kv_heads = c.kv_heads;
    config.dropout = c.dropout;
    Options options;
    options.attention.window = {c.window, 0};
    options.attention.softcap = c.softcap;
    options.attention.strategy = c.strategy;
    options.packed = c.packed;
    options.seq = 7;
    options.threads = 1;
    Harness h(config, options);
    h.randomize();
    h.train();
    const std::vector<double> gradients = h.gradients();
    std::mt19937 random(5);
    std::size_t first = 0;
    for (const Parameter& p : h.model.parameters()) {
      const std::size_t size = static_cast<std::size_t>(p.shape.numel());
      double largest = 0;
      for (std::size_t i = 0; i < size; ++i)
        largest = std::max(largest, std::abs(gradients[first + i]));
      INFO(p.layer << "/" << p.name);
      CHECK(largest > 1e-3);  // the case exercises this parameter
      for (int sample = 0; sample < 4; ++sample) {
        const std::size_t i = random() % size;
        double& x = h.arena->tensor(p.master).as<double>()[i];
        CHECK(gradients[first + i] ==
              Approx(difference(h, x, 1e-3)).epsilon(1e-7).margin(1e-7 * largest));
      }
      first += size;
    }
  }
}
