// Times the ops of a training step on a GPU, each alone, at the sizes of the 124M Llama-style model
// (configs/llama-124m.yaml: 32768 tokens a step), in bfloat16:
//
//   ops_bench [SEQ]      sequences of SEQ tokens; 1024
//
// A line an op: milliseconds, how often a step runs it, GB/s beside the copy bandwidth or TFLOP/s.
// The last lines add up the step. The rows "tall" are of 400 MB a tensor.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "ops/ops.h"

using namespace tilefold;

namespace {

constexpr std::int64_t kTokens = 32768, kLayers = 12, kWidth = 768, kHeads = 12, kD = 64,
                       kFfn = 2048, kVocab = 50304, kNorms = 2 * kLayers + 1;

class Bench {
 public:
  Bench() : device_(open_device("cuda")), stream_(device_->make_stream()), random_(1 << 24) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    for (bf16& x : random_) x = bf16(normal(engine));
  }
  Context context() { return {*device_, *stream_}; }
  const DeviceInfo& device() const { return device_->info(); }

  // bf16 random numbers, zeros of other dtypes.
  Tensor tensor(DType dtype, const Shape& shape) {
    const std::int64_t bytes = shape.numel() * size_of(dtype);
    memory_.push_back(device_->allocate(bytes));
    const Tensor t(memory_.back()->data(), dtype, shape);
    if (dtype != DType::bf16) {
      ops::fill(context(), {t, 0});
      return t;
    }
    const auto piece = static_cast<std::int64_t>(random_.size() * sizeof(bf16));
    for (std::int64_t at = 0; at < bytes; at += piece)
      device_->copy_to_device(*stream_, memory_.back()->data() + at, random_.data(),
                              std::min(piece, bytes - at));
    stream_->synchronize();
    return t;
  }
  std::span<std::byte> workspace(std::int64_t bytes) {
    const Tensor t = tensor(DType::u8, {bytes});
    return {static_cast<std::byte*>(t.data), static_cast<std::size_t>(bytes)};
  }

  // An op that moves `bytes`, `count` times a step. The first is what others are compared with.
  template <class Op>
  void moves(const char* name, std::int64_t count, double bytes, Op&& op) {
    const double ms = time(op), rate = bytes / ms / 1e6;
    if (copy_ == 0) copy_ = rate;
    std::printf("%-28s %9.4f ms x %2lld  %7.0f GB/s  %5.1f%% of copy\n", name, ms,
                static_cast<long long>(count), rate, 100 * rate / copy_);
    moving_ += ms * static_cast<double>(count);
  }
  // An op of so many floating-point operations; `total` gathers its share of the step.
  template <class Op>
  void computes(const char* name, std::int64_t count, double flops, double& total, Op&& op) {
    const double ms = time(op);
    std::printf("%-28s %9.4f ms x %2lld  %7.0f TFLOP/s\n", name, ms, static_cast<long long>(count),
                flops / ms / 1e9);
    total += ms * static_cast<double>(count);
  }
  void sum() const {
    const double all = products_ + attention_ + head_ + moving_;
    std::printf(
        "step: products %.2f ms, attention %.2f, loss head %.2f, the rest %.2f: %.2f ms, "
        "%.0f tokens/s\n",
        products_, attention_, head_, moving_, all, kTokens / all * 1e3);
  }

  // A line for what took `ms` outside the step.
  void moved(const char* name, double bytes, double ms) const {
    const double rate = bytes / ms / 1e6;
    std::printf("%-28s %9.4f ms x  0  %7.0f GB/s  %5.1f%% of copy\n", name, ms, rate,
                100 * rate / copy_);
  }
  // Milliseconds of one call: the median of 7 runs of 10.
  template <class Op>
  double time(Op&& op) {
    for (int i = 0; i < 3; ++i) op();
    stream_->synchronize();
    std::vector<double> runs;
    for (int run = 0; run < 7; ++run) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 10; ++i) op();
      stream_->synchronize();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      runs.push_back(took.count() / 10);
    }
    std::nth_element(runs.begin(), runs.begin() + 3, runs.end());
    return runs[3];
  }

  double products_ = 0, attention_ = 0, head_ = 0;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<bf16> random_;
  double copy_ = 0, moving_ = 0;
};

void norms(Bench& b, NormKind kind, std::int64_t rows, const char* forward, const char* backward,
           std::int64_t count, const Dropout& dropout = {}) {
  const Context ctx = b.context();
  const Shape shape{rows, kWidth};
  const double bytes = 2.0 * static_cast<double>(shape.numel());
  ResidualNormForward f;
  f.kind = kind, f.dropout = dropout;
  if (kind == NormKind::layer) f.mean = b.tensor(DType::f32, {rows});
  f.residual = b.tensor(DType::bf16, shape), f.branch = b.tensor(DType::bf16, shape);
  f.sum = b.tensor(DType::bf16, shape), f.y = b.tensor(DType::bf16, shape);
  f.weight = b.tensor(DType::bf16, {kWidth}), f.rstd = b.tensor(DType::f32, {rows});
  b.moves(forward, count, 4 * bytes, [&] { ops::residual_norm_forward(ctx, f); });
  ResidualNormBackward g;
  g.kind = kind, g.mean = f.mean, g.dropout = dropout;
  g.dy = f.branch, g.sum = f.sum, g.weight = f.weight, g.rstd = f.rstd, g.dsum = f.y;
  g.dweight = b.tensor(DType::f32, {kWidth});
  g.workspace =
      b.workspace(residual_norm_backward_workspace(rows, kWidth, DType::bf16, b.device()));
  if (dropout.p > 0) g.dbranch = b.tensor(DType::bf16, shape);
  b.moves(backward, count, (g.dbranch ? 5 : 4) * bytes,
          [&] { ops::residual_norm_backward(ctx, g); });
}

// GELU comes with a product: what a narrow one takes longer with it than without. 400 MB a tensor.
void gelu(Bench& b) {
  const Context ctx = b.context();
  const std::int64_t narrow = 16, wide = 8 * kWidth;
  const LinearProblem p{.tokens = kTokens, .in = narrow, .out = wide, .dtype = DType::bf16};
  const double bytes = 2.0 * static_cast<double>(kTokens * wide);
  LinearForward f;
  f.x = b.tensor(DType::bf16, {kTokens, narrow}), f.weight = b.tensor(DType::bf16, {wide, narrow});
  f.y = b.tensor(DType::bf16, {kTokens, wide});
  f.workspace = b.workspace(linear_workspace(p, b.device()));
  const double alone = b.time([&] { ops::linear_forward(ctx, f); });
  f.epilogue = Epilogue::gelu, f.pre = b.tensor(DType::bf16, {kTokens, wide});
  b.moved("gelu, tall", 2 * bytes, b.time([&] { ops::linear_forward(ctx, f); }) - alone);

  const LinearProblem q{.tokens = kTokens, .in = wide, .out = narrow, .dtype = DType::bf16};
  LinearBackward g;
  g.dy = f.x, g.x = f.y;
  g.weight = b.tensor(DType::bf16, {narrow, wide});
  g.dx = b.tensor(DType::bf16, {kTokens, wide}), g.dweight = b.tensor(DType::f32, {narrow, wide});
  g.workspace = b.workspace(linear_workspace(q, b.device()));
  const double product = b.time([&] { ops::linear_backward(ctx, g); });
  g.x_pre = f.pre;
  b.moved("gelu backward, tall", 3 * bytes,
          b.time([&] { ops::linear_backward(ctx, g); }) - product);
}

void elementwise(Bench& b, std::int64_t seq) {
  const Context ctx = b.context();
  const double rows = 2.0 * kTokens * kWidth, wide = 2.0 * kTokens * kFfn;
  const Tensor x = b.tensor(DType::bf16, {kTokens, 2 * kFfn});
  const Tensor y = b.tensor(DType::bf16, {kTokens, 2 * kFfn});
  const Tensor act = b.tensor(DType::bf16, {kTokens, kFfn});
  b.moves("copy", 0, 4 * wide, [&] { ops::copy(ctx, {.src = x, .dst = y}); });
  norms(b, NormKind::rms, 8 * kTokens, "residual norm, tall", "residual norm backward, tall", 0);
  norms(b, NormKind::layer, 8 * kTokens, "layer norm, tall", "layer norm backward, tall", 0);
  const Tensor state = b.tensor(DType::u8, {sizeof(StepState)});
  norms(b, NormKind::rms, 8 * kTokens, "norm and dropout, tall", "norm and dropout bwd, tall", 0,
        {.p = 0.2f, .rows_per_sample = seq, .state = static_cast<const StepState*>(state.data)});
  norms(b, NormKind::rms, kTokens, "residual norm", "residual norm backward", kNorms);
  gelu(b);
  b.moves("swiglu", kLayers, 3 * wide, [&] { ops::swiglu_forward(ctx, {.gate_up = x, .y = act}); });
  b.moves("swiglu backward", kLayers, 5 * wide,
          [&] { ops::swiglu_backward(ctx, {.dy = act, .gate_up = x, .dgate_up = y}); });

  const Tensor qkv = b.tensor(DType::bf16, {4 * kTokens, 3 * kWidth});
  const Tensor positions = b.tensor(DType::i32, {4 * kTokens});
  Rope rope;
  rope.table = b.tensor(DType::f32, {seq, kD});
  for (const std::int64_t times : {4, 1}) {
    const std::int64_t row = 3 * kWidth;
    rope.x = Tensor(qkv.data, DType::bf16, {times * kTokens / seq, seq, 2 * kHeads, kD},
                    {seq * row, row, kD, 1});
    rope.positions = positions.sliced(0, 0, times * kTokens);
    b.moves(times > 1 ? "rope, tall" : "rope", times > 1 ? 0 : 2 * kLayers,
            4 * rows * static_cast<double>(times), [&] { ops::rope(ctx, rope); });
  }
}

void embedding(Bench& b) {
  const Context ctx = b.context();
  std::mt19937 engine(2);
  std::vector<std::int32_t> ids(kTokens);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(engine() % kVocab);
  const Tensor tokens = b.tensor(DType::i32, {kTokens});
  ctx.device.copy_to_device(ctx.stream, tokens.data, ids.data(), tokens.bytes());
  ctx.stream.synchronize();
  const double rows = 2.0 * kTokens * kWidth;
  EmbeddingForward f;
  f.tokens = tokens, f.table = b.tensor(DType::bf16, {kVocab, kWidth});
  f.x = b.tensor(DType::bf16, {kTokens, kWidth});
  b.moves("embedding", 1, 2 * rows, [&] { ops::embedding_forward(ctx, f); });
  EmbeddingBackward g;
  g.tokens = tokens, g.dx = f.x, g.dtable = b.tensor(DType::f32, {kVocab, kWidth});
  b.moves("embedding backward", 1, 5 * rows, [&] { ops::embedding_backward(ctx, g); });
}

// All parameters of the model, as seven tensors a layer and the table.
void update(Bench& b) {
  const Context ctx = b.context();
  std::vector<AdamWParameter> parameters;
  std::vector<ConstTensor> grads;
  std::vector<Shape> shapes{{kVocab, kWidth}, {kWidth}};
  for (std::int64_t i = 0; i < kLayers; ++i)
    for (const Shape& shape : {Shape{kWidth}, Shape{3 * kWidth, kWidth}, Shape{kWidth, kWidth},
                               Shape{kWidth}, Shape{2 * kFfn, kWidth}, Shape{kWidth, kFfn}})
      shapes.push_back(shape);
  double elements = 0;
  for (const Shape& shape : shapes) {
    const auto state = [&] { return b.tensor(DType::f32, shape); };
    const Tensor grad = state();
    ops::fill(ctx, {grad, 0.01});
    parameters.push_back({.master = state(),
                          .weight = b.tensor(DType::bf16, shape),
                          .grad = grad,
                          .m = state(),
                          .v = state(),
                          .decay = true});
    grads.push_back(grad);
    elements += static_cast<double>(shape.numel());
  }
  const auto tensors = static_cast<std::int64_t>(shapes.size());
  const auto workspace = b.workspace(
      grad_square_sum_workspace(static_cast<std::int64_t>(elements), tensors, b.device()));
  const Tensor sum = b.tensor(DType::f64, {1});
  b.moves("square sum of gradients", 1, 4 * elements,
          [&] { ops::grad_square_sum(ctx, {.grads = grads, .sum = sum, .workspace = workspace}); });
  const Tensor state = b.tensor(DType::u8, {sizeof(StepState)});
  const StepState now{.target_tokens = 1000,
                      .learning_rate = 1e-3,
                      .bias_correction1 = 0.5,
                      .bias_correction2 = 0.5};
  ctx.device.copy_to_device(ctx.stream, state.data, &now, sizeof now);
  ctx.stream.synchronize();
  b.moves("adamw", 1, 30 * elements, [&] {
    ops::adamw(ctx, {.parameters = parameters,
                     .grad_square_sum = sum,
                     .state = static_cast<const StepState*>(state.data)});
  });
  b.moves("gradients to zero", 1, 4 * elements, [&] {
    for (const AdamWParameter& p : parameters)
      if (p.grad.numel() > kWidth)
        ops::fill(ctx, {Tensor(const_cast<void*>(p.grad.data), DType::f32, p.grad.shape), 0});
  });
}

void products(Bench& b) {
  const Context ctx = b.context();
  struct Layer {
    const char *forward, *backward;
    std::int64_t out, in;
  };
  for (const Layer& l : {Layer{"qkv", "qkv backward", 3 * kWidth, kWidth},
                         Layer{"out", "out backward", kWidth, kWidth},
                         Layer{"gate/up", "gate/up backward", 2 * kFfn, kWidth},
                         Layer{"down", "down backward", kWidth, kFfn}}) {
    const LinearProblem p{.tokens = kTokens, .in = l.in, .out = l.out, .dtype = DType::bf16};
    LinearForward f;
    f.x = b.tensor(DType::bf16, {kTokens, l.in}), f.weight = b.tensor(DType::bf16, {l.out, l.in});
    f.y = b.tensor(DType::bf16, {kTokens, l.out});
    f.workspace = b.workspace(linear_workspace(p, b.device()));
    b.computes(l.forward, kLayers, linear_forward_cost(p).flops, b.products_,
               [&] { ops::linear_forward(ctx, f); });
    LinearBackward g;
    g.dy = b.tensor(DType::bf16, {kTokens, l.out}), g.x = f.x, g.weight = f.weight;
    g.dx = b.tensor(DType::bf16, {kTokens, l.in});
    g.dweight = b.tensor(DType::f32, {l.out, l.in});
    g.workspace = f.workspace;
    b.computes(l.backward, kLayers, linear_backward_cost(p).flops, b.products_,
               [&] { ops::linear_backward(ctx, g); });
  }
}

void loss_head(Bench& b) {
  const Context ctx = b.context();
  LossHead h;
  h.hidden = b.tensor(DType::bf16, {kTokens, kWidth});
  h.weight = b.tensor(DType::bf16, {kVocab, kWidth});
  h.targets = b.tensor(DType::i32, {kTokens}), h.losses = b.tensor(DType::f32, {kTokens});
  h.loss_sum = b.tensor(DType::f64, {1});
  h.dhidden = b.tensor(DType::bf16, {kTokens, kWidth});
  h.dweight = b.tensor(DType::f32, {kVocab, kWidth});
  h.workspace = b.workspace(loss_head_workspace(
      {.tokens = kTokens, .width = kWidth, .vocab = kVocab, .dtype = DType::bf16}, b.device()));
  b.computes("loss head and gradient", 1, 6.0 * kTokens * kWidth * kVocab, b.head_,
             [&] { ops::loss_head(ctx, h); });
}

void attention(Bench& b, std::int64_t seq) {
  const Context ctx = b.context();
  const std::int64_t batch = kTokens / seq, row = 3 * kWidth;
  const auto part = [&](const Tensor& qkv, std::int64_t which) {
    return Tensor(static_cast<std::byte*>(qkv.data) + which * kWidth * 2, DType::bf16,
                  {batch, seq, kHeads, kD}, {seq * row, row, kD, 1});
  };
  const Tensor qkv = b.tensor(DType::bf16, {kTokens, row});
  const Tensor dqkv = b.tensor(DType::bf16, {kTokens, row});
  AttentionForward f;
  f.q = part(qkv, 0), f.k = part(qkv, 1), f.v = part(qkv, 2);
  f.o = b.tensor(DType::bf16, {batch, seq, kHeads, kD});
  f.m = b.tensor(DType::f32, {batch, kHeads, seq}),
  f.l = b.tensor(DType::f32, {batch, kHeads, seq});
  f.options.causal = true;
  AttentionProblem p = problem_of(f);
  f.workspace = b.workspace(ops::attention_workspace(p, b.device()));
  b.computes("attention", kLayers, attention_cost(p, AttentionStrategy::tiled).flops, b.attention_,
             [&] { ops::attention_forward(ctx, f); });
  AttentionBackward g;
  g.q = f.q, g.k = f.k, g.v = f.v, g.o = f.o, g.m = f.m, g.l = f.l;
  g.d_o = b.tensor(DType::bf16, {batch, seq, kHeads, kD});
  g.dq = part(dqkv, 0), g.dk = part(dqkv, 1), g.dv = part(dqkv, 2);
  g.options = f.options;
  p = problem_of(g);
  g.workspace = b.workspace(ops::attention_workspace(p, b.device()));
  b.computes("attention backward", kLayers, attention_cost(p, AttentionStrategy::tiled).flops,
             b.attention_, [&] { ops::attention_backward(ctx, g); });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::int64_t seq = argc > 1 ? std::atoll(argv[1]) : 1024;
    if (seq < 1 || kTokens % seq != 0) throw UsageError("SEQ must divide 32768");
    Bench bench;
    std::printf("%s, sequences of %lld\n", bench.device().name.c_str(),
                static_cast<long long>(seq));
    elementwise(bench, seq);
    embedding(bench);
    update(bench);
    products(bench);
    loss_head(bench);
    attention(bench, seq);
    bench.sum();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ops_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
