// What the doors of the ops refuse: before anything runs, by name, value and what is allowed.
// Attention's door has a test of its own.
#include <limits>

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

// Tensors of any shape over one buffer that no refused op may touch.
struct Stage {
  Cpu cpu{1};
  Array memory{DType::u8, {1 << 16}};
  Tensor of(DType dtype, Shape shape) { return Tensor(memory.data(), dtype, shape); }
  Tensor f32(Shape shape) { return of(DType::f32, shape); }
  Tensor i32(Shape shape) { return of(DType::i32, shape); }
  void untouched() {
    for (const double byte : memory.values()) REQUIRE(byte == 255);
  }
};

template <class Args, class Change>
void refuses(Stage& stage, void (*op)(Context, const Args&), Args args, Change change,
             const std::string& message) {
  change(args);
  REQUIRE_THROWS_WITH(op(stage.cpu.context(), args), message);
  stage.untouched();
}

TEST_CASE("linear_forward's door") {
  Stage s;
  const LinearForward ok{.x = s.f32({5, 3}),
                         .weight = s.f32({4, 3}),
                         .bias = s.f32({4}),
                         .y = s.f32({5, 4}),
                         .epilogue = Epilogue::gelu,
                         .pre = s.f32({5, 4}),
                         .workspace = {}};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::linear_forward, ok, change, "linear_forward: " + message);
  };
  no([&](auto& a) { a.x = {}; }, "x has shape []; [tokens, in] is needed");
  no(
      [&](auto& a) {
        a.x = s.f32({5, 0});
      },
      "x has shape [5, 0]; sizes of [tokens, in] must be at least 1 (the first at least 0)");
  no(
      [&](auto& a) {
        a.weight = s.f32({4, 2});
      },
      "weight has shape [4, 2]; [out, in] = [4, 3] is needed");
  no([&](auto& a) { a.weight = s.of(DType::bf16, {4, 3}); }, "weight is bf16; allowed: f32");
  no([&](auto& a) { a.x = s.i32({5, 3}); }, "x is i32; allowed: f32, bf16, f16, f64");
  no([&](auto& a) { a.bias = s.f32({3}); }, "bias has shape [3]; [out] = [4] is needed");
  no([&](auto& a) { a.y = {}; }, "y has shape []; [tokens, out] = [5, 4] is needed");
  no([&](auto& a) { a.y.data = nullptr; }, "y is empty; [tokens, out] = [5, 4] is needed");
  no([&](auto& a) { a.y = s.of(DType::bf16, {5, 4}); }, "y is bf16; allowed: f32");
  no([&](auto& a) { a.y.strides[0] = 3; },
     "y has strides [3, 1]; rows [tokens, out] with last stride 1 that do not overlap are needed");
  no([&](auto& a) { a.x.strides[1] = 2; },
     "x has strides [3, 2]; rows [tokens, in] with last stride 1 that do not overlap are needed");
  no([&](auto& a) { a.pre = {}; }, "pre has shape []; [tokens, out] = [5, 4] is needed");
  no([&](auto& a) { a.epilogue = Epilogue::none; },
     "pre is given; it must be empty without an epilogue");
  const auto half = [&](auto& a) {
    a.x = s.of(DType::bf16, {5, 3});
    a.weight = s.of(DType::bf16, {4, 3});
    a.bias = {};
    a.pre = s.of(DType::bf16, {5, 4});
  };
  const std::int64_t bytes = linear_workspace({5, 3, 4, DType::bf16}, s.cpu.device->info());
  no(half, str("workspace has 0 bytes; at least ", bytes, " are needed"));
  no(
      [&](auto& a) {
        half(a);
        a.workspace = s.memory.span().subspan(4, static_cast<std::size_t>(bytes));
      },
      "workspace starts at an address that is no multiple of 8");
}

TEST_CASE("linear_backward's door") {
  Stage s;
  const LinearBackward ok{.dy = s.f32({5, 4}),
                          .x = s.f32({5, 3}),
                          .weight = s.f32({4, 3}),
                          .x_pre = s.f32({5, 3}),
                          .dx = s.f32({5, 3}),
                          .dweight = s.f32({4, 3}),
                          .dbias = s.f32({4}),
                          .workspace = {}};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::linear_backward, ok, change, "linear_backward: " + message);
  };
  no(
      [&](auto& a) {
        a.dy = s.f32({4, 4});
      },
      "dy has shape [4, 4]; [tokens, out] = [5, 4] is needed");
  no([&](auto& a) { a.dweight = {}; }, "dweight has shape []; [out, in] = [4, 3] is needed");
  no([&](auto& a) { a.dweight = s.of(DType::f64, {4, 3}); }, "dweight is f64; allowed: f32");
  no([&](auto& a) { a.dbias = s.f32({5}); }, "dbias has shape [5]; [out] = [4] is needed");
  no([&](auto& a) { a.dx = {}; }, "dx is empty; it is needed where x_pre is given");
  no(
      [&](auto& a) {
        a.x_pre = s.f32({5, 4});
      },
      "x_pre has shape [5, 4]; [tokens, in] = [5, 3] is needed");
  no([&](auto& a) { a.dx = s.of(DType::f64, {5, 3}); }, "dx is f64; allowed: f32");
}

TEST_CASE("residual_norm_forward's door") {
  Stage s;
  const StepState state;
  const ResidualNormForward ok{.kind = NormKind::layer,
                               .residual = s.f32({6, 4}),
                               .branch = s.f32({6, 4}),
                               .weight = s.f32({4}),
                               .bias = s.f32({4}),
                               .sum = s.f32({6, 4}),
                               .y = s.f32({6, 4}),
                               .mean = s.f32({6}),
                               .rstd = s.f32({6}),
                               .dropout = {.p = 0.5f, .rows_per_sample = 3, .state = &state}};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::residual_norm_forward, ok, change, "residual_norm_forward: " + message);
  };
  no([&](auto& a) { a.residual = s.f32({24}); },
     "residual has shape [24]; [tokens, width] is needed");
  no([&](auto& a) { a.residual = s.of(DType::f64, {6, 4}); }, "residual is f64; allowed: f32");
  no([&](auto& a) { a.residual = s.of(DType::bf16, {6, 4}); }, "residual is bf16; allowed: f32");
  no([&](auto& a) { a.y = s.of(DType::bf16, {6, 4}); }, "branch is f32; allowed: bf16");
  no([&](auto& a) { a.branch = {}; }, "sum is given; it must be empty without a branch");
  no([&](auto& a) { a.sum = {}; }, "sum has shape []; [tokens, width] = [6, 4] is needed");
  no([&](auto& a) { a.y.strides[0] = 5; },
     "y has strides [5, 1]; a dense [tokens, width] is needed");
  no([&](auto& a) { a.weight = s.f32({5}); }, "weight has shape [5]; [width] = [4] is needed");
  no([&](auto& a) { a.mean = {}; }, "mean has shape []; [tokens] = [6] is needed");
  no([&](auto& a) { a.kind = NormKind::rms; }, "mean is given; it must be empty for rms");
  no([&](auto& a) { a.eps = -1; }, "eps is -1; allowed: 0 and above");
  no([&](auto& a) { a.dropout.p = 1; }, "dropout.p is 1; allowed: 0 and above, below 1");
  no([&](auto& a) { a.dropout.p = std::numeric_limits<float>::quiet_NaN(); },
     "dropout.p is nan; allowed: 0 and above, below 1");
  no([&](auto& a) { a.dropout.state = nullptr; },
     "dropout.state is empty; it is needed where p is above 0");
  no([&](auto& a) { a.dropout.site = 65536; }, "dropout.site is 65536; allowed: below 65536");
  no([&](auto& a) { a.dropout.rows_per_sample = 4; },
     "dropout.rows_per_sample is 4; a divisor of the 6 rows is needed");
}

TEST_CASE("residual_norm_backward's door") {
  Stage s;
  const ResidualNormBackward ok{.kind = NormKind::rms,
                                .dy = s.f32({6, 4}),
                                .sum = s.f32({6, 4}),
                                .weight = s.f32({4}),
                                .mean = {},
                                .rstd = s.f32({6}),
                                .dsum = s.f32({6, 4}),
                                .dbranch = s.f32({6, 4}),
                                .dweight = s.f32({4}),
                                .dbias = {},
                                .dropout = {},
                                .workspace = s.memory.span()};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::residual_norm_backward, ok, change, "residual_norm_backward: " + message);
  };
  no([&](auto& a) { a.dsum = s.of(DType::f64, {6, 4}); }, "dsum is f64; allowed: f32");
  no(
      [&](auto& a) {
        a.dbranch = s.f32({6, 3});
      },
      "dbranch has shape [6, 3]; [tokens, width] = [6, 4] is needed");
  no([&](auto& a) { a.rstd = {}; }, "rstd has shape []; [tokens] = [6] is needed");
  no([&](auto& a) { a.workspace = {}; },
     str("workspace has 0 bytes; at least ",
         residual_norm_backward_workspace(6, 4, DType::f32, s.cpu.device->info()), " are needed"));
}

TEST_CASE("swiglu's doors") {
  Stage s;
  const SwigluForward ok{.gate_up = s.f32({5, 6}), .y = s.f32({5, 3})};
  refuses(
      s, ops::swiglu_forward, ok,
      [&](auto& a) {
        a.gate_up = s.f32({5, 3});
      },
      "swiglu_forward: gate_up has shape [5, 3]; [tokens, 2 * ffn] = [5, 6] is needed");
  refuses(
      s, ops::swiglu_forward, ok,
      [&](auto& a) {
        a.gate_up = s.of(DType::f16, {5, 6});
      },
      "swiglu_forward: gate_up is f16; allowed: f32");
  const SwigluBackward back{
      .dy = s.f32({5, 3}), .gate_up = s.f32({5, 6}), .dgate_up = s.f32({5, 6})};
  refuses(
      s, ops::swiglu_backward, back,
      [&](auto& a) {
        a.dgate_up = s.f32({5, 3});
      },
      "swiglu_backward: dgate_up has shape [5, 3]; [tokens, 2 * ffn] = [5, 6] is needed");
}

TEST_CASE("rope's door") {
  Stage s;
  const Rope ok{
      .x = s.f32({2, 3, 4, 6}), .positions = s.i32({6}), .table = s.f32({9, 6}), .inverse = false};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::rope, ok, change, "rope: " + message);
  };
  no([&](auto& a) { a.x = s.f32({2, 3, 4, 5}); }, "x has width d = 5; an even one is needed");
  no(
      [&](auto& a) {
        a.x = s.f32({6, 24});
      },
      "x has shape [6, 24]; [batch, seq, heads, d] is needed");
  no([&](auto& a) { a.x.strides[3] = 2; }, "x has strides [72, 24, 6, 2]; the last must be 1");
  no([&](auto& a) { a.positions = s.i32({3}); },
     "positions has shape [3]; [batch * seq] = [6] is needed");
  no([&](auto& a) { a.positions = s.f32({6}); }, "positions is f32; allowed: i32");
  no(
      [&](auto& a) {
        a.table = s.f32({9, 4});
      },
      "table has shape [9, 4]; [context, d] = [9, 6] is needed");
}

TEST_CASE("embedding's doors") {
  Stage s;
  const EmbeddingForward ok{.tokens = s.i32({6}),
                            .positions = s.i32({6}),
                            .table = s.f32({9, 4}),
                            .position_table = s.f32({3, 4}),
                            .x = s.f32({6, 4}),
                            .dropout = {}};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::embedding_forward, ok, change, "embedding_forward: " + message);
  };
  no([&](auto& a) { a.tokens = s.of(DType::i64, {6}); }, "tokens is i64; allowed: i32");
  no(
      [&](auto& a) {
        a.table = s.f32({9, 5});
      },
      "table has shape [9, 5]; [vocab, width] = [9, 4] is needed");
  no([&](auto& a) { a.positions = {}; }, "positions has shape []; [tokens] = [6] is needed");
  no([&](auto& a) { a.x = s.of(DType::bf16, {6, 4}); }, "x is bf16; allowed: f32");
  const EmbeddingBackward back{.tokens = s.i32({6}),
                               .positions = s.i32({6}),
                               .dx = s.of(DType::bf16, {6, 4}),
                               .dtable = s.f32({9, 4}),
                               .dposition_table = s.f32({3, 4}),
                               .dropout = {}};
  refuses(
      s, ops::embedding_backward, back,
      [&](auto& a) {
        a.dtable = s.of(DType::bf16, {9, 4});
      },
      "embedding_backward: dtable is bf16; allowed: f32");
}

TEST_CASE("loss_head's door") {
  Stage s;
  const LossHead ok{.hidden = s.f32({6, 4}),
                    .weight = s.f32({9, 4}),
                    .targets = s.i32({6}),
                    .losses = s.f32({6}),
                    .predictions = s.i32({6}),
                    .loss_sum = s.of(DType::f64, {1}),
                    .dhidden = s.f32({6, 4}),
                    .dweight = s.f32({9, 4}),
                    .workspace = s.memory.span()};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::loss_head, ok, change, "loss_head: " + message);
  };
  no(
      [&](auto& a) {
        a.weight = s.f32({9, 5});
      },
      "weight has shape [9, 5]; [vocab, width] = [9, 4] is needed");
  no([&](auto& a) { a.targets = s.i32({5}); }, "targets has shape [5]; [tokens] = [6] is needed");
  no([&](auto& a) { a.losses = s.of(DType::f64, {6}); }, "losses is f64; allowed: f32");
  no([&](auto& a) { a.loss_sum = s.f32({1}); }, "loss_sum is f32; allowed: f64");
  no([&](auto& a) { a.predictions = s.f32({6}); }, "predictions is f32; allowed: i32");
  no([&](auto& a) { a.dweight = {}; }, "dweight has shape []; [vocab, width] = [9, 4] is needed");
  no([&](auto& a) { a.dhidden = {}; }, "dweight is given; it must be empty without dhidden");
  no([&](auto& a) { a.workspace = a.workspace.subspan(0, 16); },
     str("workspace has 16 bytes; at least ",
         loss_head_workspace({6, 4, 9, DType::f32}, s.cpu.device->info()), " are needed"));
}

TEST_CASE("the optimizer's doors") {
  Stage s;
  const StepState state{.target_tokens = 1};
  std::vector<AdamWParameter> parameters{{.master = s.f32({5}),
                                          .weight = s.of(DType::bf16, {5}),
                                          .grad = s.f32({5}),
                                          .m = s.f32({5}),
                                          .v = s.f32({5})}};
  const AdamW ok{
      .parameters = parameters, .grad_square_sum = s.of(DType::f64, {1}), .state = &state};
  const auto no = [&](auto change, const std::string& message) {
    refuses(s, ops::adamw, ok, change, "adamw: " + message);
  };
  no([&](auto& a) { a.state = nullptr; }, "state is empty; a StepState in device memory is needed");
  no([&](auto& a) { a.beta1 = 1; }, "beta1 is 1; allowed: 0 and above, below 1");
  no([&](auto& a) { a.beta2 = -0.5; }, "beta2 is -0.5; allowed: 0 and above, below 1");
  no([&](auto& a) { a.clip = std::nan(""); }, "clip is nan; allowed: 0 (none) and above");
  no([&](auto& a) { a.grad_square_sum = s.f32({1}); }, "grad_square_sum is f32; allowed: f64");
  std::vector<AdamWParameter> wrong = parameters;
  wrong[0].m = s.f32({4});
  no([&](auto& a) { a.parameters = wrong; },
     "parameters.m has shape [4]; master's shape = [5] is needed");
  wrong[0] = parameters[0];
  wrong[0].weight = s.f32({5});
  no([&](auto& a) { a.parameters = wrong; }, "parameters.weight is f32; allowed: bf16, f16");

  std::vector<ConstTensor> grads{s.of(DType::bf16, {5})};
  const GradSquareSum sum{.grads = grads, .sum = s.of(DType::f64, {1}), .workspace = {}};
  refuses(
      s, ops::grad_square_sum, sum, [](auto&) {},
      "grad_square_sum: grads is bf16; allowed: f32, f64");
  grads[0] = s.f32({5});
  refuses(
      s, ops::grad_square_sum, sum, [](auto&) {},
      "grad_square_sum: workspace has 0 bytes; at least 8 are needed");
}

TEST_CASE("fill's and copy's doors") {
  Stage s;
  refuses(
      s, ops::fill, Fill{.x = s.f32({4, 4}), .value = 0},
      [](auto& a) { a.x = a.x.sliced(1, 0, 2); },
      "fill: x has strides [4, 1]; a dense x is needed");
  const Copy ok{.src = s.f32({4}), .dst = s.f32({4})};
  refuses(
      s, ops::copy, ok, [&](auto& a) { a.dst = s.f32({5}); },
      "copy: src has shape [4] and dst [5]; they must be equal");
  refuses(
      s, ops::copy, ok, [&](auto& a) { a.dst = s.i32({4}); },
      "copy: src is f32 and dst i32; integers are copied to their own dtype only");
}

}  // namespace
}  // namespace tilefold::test
