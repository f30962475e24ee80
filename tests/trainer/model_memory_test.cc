// The plan of a model is obeyed: nothing outside it is touched, all of it is used, lives are as
// declared, and a step allocates nothing.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/catch.h"
#include "tests/trainer/allocations.h"
#include "tests/trainer/model_harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

struct Case {
  const char* name;
  ModelStyle style;
  DType dtype;
  DType residual_dtype = DType::f32;
  bool tied = true;
  double dropout = 0;
  bool packed = false;
  AttentionStrategy strategy = AttentionStrategy::automatic;
};

const Case kCases[] = {
    {.name = "llama", .style = ModelStyle::llama, .dtype = DType::f32},
    {.name = "llama bf16",
     .style = ModelStyle::llama,
     .dtype = DType::bf16,
     .residual_dtype = DType::bf16,
     .tied = false},
    {.name = "llama bf16, residual f32", .style = ModelStyle::llama, .dtype = DType::bf16},
    {.name = "llama packed", .style = ModelStyle::llama, .dtype = DType::f32, .packed = true},
    {.name = "gpt2 f64", .style = ModelStyle::gpt2, .dtype = DType::f64, .dropout = 0.1},
    {.name = "gpt2 naive",
     .style = ModelStyle::gpt2,
     .dtype = DType::f32,
     .tied = false,
     .strategy = AttentionStrategy::naive},
};

ModelConfig config_of(const Case& c) {
  ModelConfig config = tiny_config(c.style);
  config.dtype = c.dtype;
  config.residual_dtype = c.residual_dtype;
  config.tie_embeddings = c.tied;
  config.dropout = c.dropout;
  return config;
}

Options options_of(const Case& c, Watch watch) {
  Options options;
  options.attention.strategy = c.strategy;
  options.packed = c.packed;
  options.row_constants = true;
  options.cache_length = c.packed ? 0 : 9;
  options.watch = watch;
  return options;
}

struct CaseHarness : Harness {
  explicit CaseHarness(const Case& c, Watch watch = Watch::off)
      : Harness(config_of(c), options_of(c, watch)) {
    randomize();
  }
};

// A prompt of `prompt` tokens a sample, then the rest one by one; the last logits.
std::vector<double> generate(Harness& h, std::int64_t prompt, std::int64_t length) {
  const Model::Inputs& inputs = h.model.generate_inputs();
  for (std::int64_t start = 0; start < length;) {
    Batch b;
    b.samples = h.shape.samples;
    b.seq = start == 0 ? prompt : 1;
    const std::int64_t n = b.samples * b.seq;
    b.tokens = h.arena->tensor(inputs.tokens).sliced(0, 0, n);
    b.positions = h.arena->tensor(inputs.positions).sliced(0, 0, n);
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t place = start + t % b.seq;
      h.arena->tensor(inputs.positions).as<std::int32_t>()[t] = static_cast<std::int32_t>(place);
      h.arena->tensor(inputs.tokens).as<std::int32_t>()[t] =
          h.tokens[static_cast<std::size_t>(t / b.seq * h.shape.seq + place)];
    }
    h.model.generate(h.context(), *h.arena, b, start);
    start += b.seq;
  }
  return h.values(h.model.logits());
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

// Planned for the largest of several uses or for the most documents, or for the update alone.
bool may_stay_untouched(const std::string& name) {
  const auto ends = [&](const std::string& end) {
    return name.size() >= end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends("/workspace") || ends("/cu_seqlens") || ends(".m") || ends(".v");
}

}  // namespace

TEST_CASE("the plan is obeyed: guards, poison, and everything planned is written") {
  for (const Case& c : kCases) {
    INFO(c.name);
    CaseHarness plain(c), watched(c, Watch::on);
    // The same bits with every byte outside of its life poisoned.
    REQUIRE(all_finite(plain.gradients()));
    CHECK(watched.train() == plain.train());
    CHECK(watched.gradients() == plain.gradients());
    CHECK(watched.train(1) == plain.train(1));  // a smaller batch, on views
    CHECK(watched.gradients() == plain.gradients());
    CHECK(watched.train() == plain.train());  // dead tensors of the pass before are not read
    CHECK(watched.gradients() == plain.gradients());
    CHECK(watched.evaluate() == plain.evaluate());
    CHECK(watched.values(watched.model.eval_predictions()) ==
          plain.values(plain.model.eval_predictions()));
    for (auto [m, l] : watched.model.eval_row_constants())
      CHECK((all_finite(watched.values(m)) && all_finite(watched.values(l))));
    if (!c.packed) CHECK(generate(watched, 9, 9) == generate(plain, 9, 9));
    if (!c.packed) CHECK(generate(watched, 3, 9) == generate(plain, 3, 9));
    for (const std::string& name : watched.arena->untouched()) {
      INFO(name);
      CHECK(may_stay_untouched(name));
    }
    CHECK(plain.device->allocated_bytes() == plain.plan.arena_bytes());
  }
}

TEST_CASE("a step allocates nothing on the heap") {
  for (const Case& c : kCases) {
    INFO(c.name);
    CaseHarness h(c);
    const Batch train = h.put(h.model.train_inputs(), h.shape.samples);
    const auto train_step = [&] {
      h.model.train_step(h.context(), *h.arena, train, &h.state, [](int) {});
    };
    train_step();  // what threads and libraries set up once
    std::int64_t before = allocations;
    train_step();
    CHECK(allocations == before);
    const Batch eval = h.put(h.model.eval_inputs(), h.shape.samples);
    before = allocations;
    h.model.evaluate(h.context(), *h.arena, eval);
    CHECK(allocations == before);
    if (c.packed) continue;
    Batch prompt = h.put(h.model.generate_inputs(), h.shape.samples);
    const auto cut = [&](std::int64_t seq) {
      prompt.seq = seq;
      prompt.tokens = prompt.tokens.sliced(0, 0, seq * prompt.samples);
      prompt.positions = prompt.positions.sliced(0, 0, seq * prompt.samples);
    };
    cut(4);
    before = allocations;
    h.model.generate(h.context(), *h.arena, prompt, 0);
    cut(1);
    h.model.generate(h.context(), *h.arena, prompt, 4);
    CHECK(allocations == before);
  }
}

TEST_CASE("gradients and losses accumulate over micro-batches, layers finish downwards") {
  CaseHarness h(kCases[4]);
  const double once = h.train();
  const std::vector<double> gradients = h.gradients();
  std::vector<int> done;
  const Batch batch = h.put(h.model.train_inputs(), h.shape.samples);
  h.model.train_step(h.context(), *h.arena, batch, &h.state,
                     [&](int layer) { done.push_back(layer); });
  CHECK(done == std::vector<int>{3, 2, 1, 0});
  CHECK(h.values(h.model.train_loss_sum())[0] == Approx(2 * once).epsilon(1e-14));
  const std::vector<double> twice = h.gradients();
  double error = 0;
  for (std::size_t i = 0; i < twice.size(); ++i)
    error = std::max(error, std::abs(twice[i] - 2 * gradients[i]));
  CHECK(error < 1e-12);
}

TEST_CASE("micro-batches draw the dropout of their place in the global batch") {
  CaseHarness h(kCases[4]);
  const double whole = h.train();
  const std::vector<double> gradients = h.gradients();
  h.zero();
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    Batch b = h.put(h.model.train_inputs(), 2);
    b.samples = 1;
    for (ConstTensor* t : {&b.tokens, &b.targets, &b.positions})
      *t = t->sliced(0, sample * b.seq, b.seq);
    h.state.first_sample += sample;
    h.model.train_step(h.context(), *h.arena, b, &h.state, [](int) {});
  }
  CHECK(h.values(h.model.train_loss_sum())[0] == Approx(whole).epsilon(1e-14));
  const std::vector<double> sum = h.gradients();
  double error = 0;
  for (std::size_t i = 0; i < sum.size(); ++i)
    error = std::max(error, std::abs(sum[i] - gradients[i]));
  CHECK(error < 1e-12);
  h.state.first_sample += 1;
  CHECK(std::abs(h.train() - whole) > 1e-6);
}

TEST_CASE("batches shorter than planned run in the planned workspace") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    ModelConfig config = tiny_config(ModelStyle::llama);
    config.dtype = dtype;
    config.context = 1025;
    Options options;
    options.samples = 2;
    options.seq = 1025;
    options.cache_length = 1025;
    Harness h(config, options);
    for (std::int64_t samples : {1, 2})
      for (std::int64_t seq : {1000, 512, 1}) {
        const std::int64_t n = samples * seq;
        Batch b = h.put(h.model.train_inputs(), samples);
        b.seq = seq;
        for (ConstTensor* t : {&b.tokens, &b.targets, &b.positions}) *t = t->sliced(0, 0, n);
        h.model.train_step(h.context(), *h.arena, b, &h.state, [](int) {});
        b = h.put(h.model.generate_inputs(), samples);
        b.seq = seq;
        for (ConstTensor* t : {&b.tokens, &b.positions}) *t = t->sliced(0, 0, n);
        h.model.generate(h.context(), *h.arena, b, 0);
      }
    CHECK(all_finite(h.gradients()));
    CHECK(all_finite(h.values(h.model.logits())));
  }
}

TEST_CASE("the same bits with any number of threads") {
  for (const Case& c : kCases) {
    INFO(c.name);
    Options options = options_of(c, Watch::off);
    options.threads = 1;
    Harness one(config_of(c), options);
    options.threads = 3;
    Harness three(config_of(c), options);
    one.randomize();
    three.randomize();
    CHECK(one.train() == three.train());
    CHECK(one.gradients() == three.gradients());
    CHECK(one.evaluate() == three.evaluate());
  }
}

TEST_CASE("generation with the cache is what recomputing the whole prefix gives") {
  for (ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2})
    for (std::int64_t window : {-1, 2})
      for (std::int64_t prompt : {1, 4}) {
        ModelConfig config = tiny_config(style);
        Options options;
        options.attention.window = {window, 0};
        options.cache_length = 9;
        Harness h(config, options);
        h.randomize();
        h.evaluate();
        const std::vector<double> predictions = h.values(h.model.eval_predictions());
        for (std::int64_t length = prompt; length <= 9; ++length) {
          const std::vector<double> cached = generate(h, prompt, length);
          const std::vector<double> whole = generate(h, length, length);
          for (std::size_t i = 0; i < whole.size(); ++i)
            CHECK(cached[i] == Approx(whole[i]).epsilon(1e-10).margin(1e-10));
          for (std::int64_t s = 0; s < 2; ++s) {
            const auto row = cached.begin() + s * h.vocab;
            const auto best = std::max_element(row, row + h.vocab) - row;
            CHECK(best == predictions[static_cast<std::size_t>(s * h.shape.seq + length - 1)]);
          }
        }
      }
}

TEST_CASE(
    "decoding at a place that the device reads is generation at a place that the host knows") {
  for (ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2})
    for (std::int64_t window : {-1, 2}) {
      Options options;
      options.attention.window = {window, 0};
      options.samples = 1;
      options.cache_length = 9;
      options.watch = Watch::on;
      Harness h(tiny_config(style), options), by_host(tiny_config(style), options);
      h.randomize();
      by_host.randomize();
      generate(h, 3, 3);
      auto* step = h.arena->tensor(h.model.generate_inputs().decode).as<std::int32_t>();
      for (std::int32_t place = 3; place < 9; ++place) {
        const std::array<std::int32_t, 6> next{
            h.tokens[static_cast<std::size_t>(place)], place, 0, 1, 0, place + 1};
        std::copy(next.begin(), next.end(), step);
        h.model.decode(h.context(), *h.arena);
        const std::vector<double> got = h.values(h.model.logits());
        const std::vector<double> expected = generate(by_host, 3, place + 1);
        for (std::size_t i = 0; i < expected.size(); ++i)
          CHECK(got[i] == Approx(expected[i]).epsilon(1e-10).margin(1e-10));
      }
    }
}

TEST_CASE("batches that were not planned for are refused") {
  CaseHarness h(kCases[0]);
  Batch b = h.put(h.model.train_inputs(), 2);
  b.samples = 3;
  CHECK_THROWS_WITH(h.model.train_step(h.context(), *h.arena, b, &h.state, [](int) {}),
                    "train: batch has 3 samples of 9 tokens; planned: 1 to 2 of 1 to 9");
  const std::vector<std::int64_t> offsets{0, 3, 6, 9, 10, 11, 12, 18};
  b = h.put(h.model.train_inputs(), 2);
  b.cu_seqlens = ConstTensor(offsets.data(), DType::i64, {8});
  b.max_document = 6;
  CHECK_THROWS_WITH(h.model.train_step(h.context(), *h.arena, b, &h.state, [](int) {}),
                    "train: batch has 7 packed documents; planned: 0 to 0");
  Options packed;
  packed.packed = true;
  Harness documents(tiny_config(ModelStyle::llama), packed);
  Batch p = documents.put(documents.model.eval_inputs(), 2);
  p.cu_seqlens = b.cu_seqlens;
  CHECK_THROWS_WITH(documents.model.evaluate(documents.context(), *documents.arena, p),
                    "eval: batch has 7 packed documents; planned: 0 to 6");
  b = h.put(h.model.eval_inputs(), 2);
  b.seq = 4;
  CHECK_THROWS_AS(h.model.generate(h.context(), *h.arena, b, 6), Error);
  const ModelConfig config = tiny_config(ModelStyle::llama);
  for (auto change : std::vector<std::function<void(ModelConfig&)>>{
           [](ModelConfig& c) { c.dtype = DType::f16; }, [](ModelConfig& c) { c.heads = 5; },
           [](ModelConfig& c) { c.kv_heads = 3; }, [](ModelConfig& c) { c.bias = true; },
           [](ModelConfig& c) { c.dropout = 0.1; }, [](ModelConfig& c) { c.vocab = 0; },
           [](ModelConfig& c) { c.heads = 16; }}) {
    ModelConfig changed = config;
    change(changed);
    CHECK_THROWS_AS(Model(changed, {}, h.device->info()), UsageError);
  }
}
