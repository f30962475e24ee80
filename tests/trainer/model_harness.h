// A tiny model with its plan, arena and one batch, for the tests of the model.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/arena.h"
#include "ops/ops.h"
#include "trainer/model/model.h"

namespace tilefold::test {

inline ModelConfig tiny_config(ModelStyle style) {
  ModelConfig c;
  c.style = style;
  c.layers = 2;
  c.width = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn_width = 10;
  c.context = 12;
  c.vocab = 11;
  c.dtype = DType::f64;
  c.bias = style == ModelStyle::gpt2;
  return c;
}

inline double value_at(ConstTensor t, std::int64_t i) {
  if (t.dtype == DType::f64) return t.as<double>()[i];
  if (t.dtype == DType::i32) return t.as<std::int32_t>()[i];
  if (t.dtype == DType::bf16) return static_cast<double>(static_cast<float>(t.as<bf16>()[i]));
  return static_cast<double>(t.as<float>()[i]);
}

inline void set_value(Tensor t, std::int64_t i, double x) {
  if (t.dtype == DType::f64)
    t.as<double>()[i] = x;
  else if (t.dtype == DType::bf16)
    t.as<bf16>()[i] = bf16(static_cast<float>(x));
  else
    t.as<float>()[i] = static_cast<float>(x);
}

struct Options {
  AttentionConfig attention;
  std::int64_t samples = 2, seq = 9;
  bool packed = false;
  bool row_constants = false;
  std::int64_t cache_length = 0;  // 0: no generation
  Watch watch = Watch::off;
  int threads = 2;
};

class Harness {
 public:
  Harness(const ModelConfig& config, const Options& options = {})
      : device(open_cpu_device(options.threads)),
        stream(device->make_stream()),
        model(config, options.attention, device->info()),
        shape{.samples = options.samples,
              .seq = options.seq,
              .documents = options.packed ? 3 * options.samples : 0,
              .row_constants = options.row_constants} {
    PlanBuilder builder;
    model.declare_weights(builder, true);
    model.declare_train(builder, shape);
    model.declare_eval(builder, shape);
    if (options.cache_length > 0)
      model.declare_generate(builder, options.samples, options.cache_length);
    plan = builder.build(
        {.guard_bytes = options.watch == Watch::on ? std::int64_t{64} : std::int64_t{0}});
    arena = std::make_unique<Arena>(*device, plan, 0, options.watch);
    model.initialize(context(), *arena, 1);
    vocab = config.vocab;
    state.seed = 3;
    state.step = 5;
    state.first_sample = 4;
    zero();
    draw_batch();
  }

  Context context() { return {*device, *stream}; }

  // Weights with large enough deviations that every path matters; norms near one.
  void randomize(unsigned seed = 7) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 0.4);
    for (const Parameter& p : model.parameters()) {
      const Tensor t = arena->tensor(p.master);
      for (std::int64_t i = 0; i < t.numel(); ++i)
        set_value(t, i, (p.init_one ? 1 : 0) + normal(random));
    }
    model.refresh(context(), *arena);
  }

  void draw_batch(unsigned seed = 11) {
    std::mt19937 random(seed);
    const std::int64_t n = shape.samples * shape.seq;
    tokens.resize(static_cast<std::size_t>(n));
    targets.resize(tokens.size());
    positions.resize(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
      targets[t] = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
      positions[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % shape.seq);
    }
    targets[1] = -1;
    cu_seqlens.clear();
    if (shape.documents == 0) return;
    // Documents of 3 and the rest of each sample; an empty one between.
    cu_seqlens.push_back(0);
    for (std::int64_t s = 0; s < shape.samples; ++s) {
      cu_seqlens.push_back(s * shape.seq + 3);
      cu_seqlens.push_back(s * shape.seq + 3);
      cu_seqlens.push_back((s + 1) * shape.seq);
      for (std::int64_t i = 3; i < shape.seq; ++i)
        positions[static_cast<std::size_t>(s * shape.seq + i)] = static_cast<std::int32_t>(i - 3);
    }
  }

  // Copies the first `samples` of the batch into a phase's inputs.
  Batch put(const Model::Inputs& inputs, std::int64_t samples) {
    Batch b;
    b.samples = samples;
    b.seq = shape.seq;
    const std::int64_t n = samples * shape.seq;
    const auto copy = [&](TensorId id, const std::vector<std::int32_t>& from) {
      if (id == kNoTensor) return ConstTensor();
      const Tensor t = arena->tensor(id).sliced(0, 0, n);
      std::memcpy(t.data, from.data(), static_cast<std::size_t>(n) * 4);
      return ConstTensor(t);
    };
    b.tokens = copy(inputs.tokens, tokens);
    b.targets = copy(inputs.targets, targets);
    b.positions = copy(inputs.positions, positions);
    if (shape.documents > 0) {
      const Tensor t = arena->tensor(inputs.cu_seqlens).sliced(0, 0, 1 + 3 * samples);
      std::memcpy(t.data, cu_seqlens.data(), static_cast<std::size_t>(t.bytes()));
      b.cu_seqlens = t;
      b.max_document = shape.seq - 3;
    }
    return b;
  }

  void zero() {
    for (const Parameter& p : model.parameters()) {
      ops::fill(context(), {.x = arena->tensor(p.grad), .value = 0});
    }
    ops::fill(context(), {.x = arena->tensor(model.train_loss_sum()), .value = 0});
  }

  // Sum of losses; gradients are those of this batch alone.
  double train(std::int64_t samples = 0) {
    zero();
    const Batch batch = put(model.train_inputs(), samples > 0 ? samples : shape.samples);
    model.train_step(context(), *arena, batch, &state, [](int) {});
    return arena->tensor(model.train_loss_sum()).as<double>()[0];
  }

  double evaluate() {
    model.evaluate(context(), *arena, put(model.eval_inputs(), shape.samples));
    double sum = 0;
    for (double x : values(model.eval_losses())) sum += x;
    return sum;
  }

  std::vector<double> values(TensorId id) {
    const Tensor t = arena->tensor(id);
    std::vector<double> out;
    for (std::int64_t i = 0; i < t.numel(); ++i) out.push_back(value_at(t, i));
    return out;
  }
  // Of all parameters, one after another.
  std::vector<double> gradients() {
    std::vector<double> all;
    for (const Parameter& p : model.parameters()) {
      const std::vector<double> one = values(p.grad);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Model model;
  PhaseShape shape;
  Plan plan;
  std::unique_ptr<Arena> arena;
  StepState state;
  std::int64_t vocab = 0;
  std::vector<std::int32_t> tokens, targets, positions;
  std::vector<std::int64_t> cu_seqlens;
};

}  // namespace tilefold::test
