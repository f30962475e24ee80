// The CUDA attention kernels against the float64 reference (rule 10), option by option, and the
// same bits again and again.
#include <array>

#include "tests/catch.h"
#include "tests/kernels/gpu_run.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

Problem problem(std::int64_t batch, std::int64_t seq_q, std::int64_t seq_k, std::int64_t heads,
                std::int64_t kv_heads, std::int64_t d, DType dtype, Layout layout) {
  Problem p;
  p.batch = batch, p.seq_q = seq_q, p.seq_k = seq_k, p.heads = heads, p.kv_heads = kv_heads;
  p.d = d, p.dtype = dtype, p.layout = layout;
  return p;
}

void agrees(Context ctx, const Problem& p, std::uint64_t seed = 1, double factor = 1) {
  const Inputs inputs = normal_inputs(p, seed, factor);
  CHECK(disagreement(p, run_on_gpu(ctx, p, inputs), expect_outputs(p, inputs)) == "");
}

constexpr int kOptions = 9;
void set_option(Problem& p, int option) {
  AttentionOptions& o = p.options;
  if (option == 1) o.causal = true;
  if (option == 2) o.window_left = 70;
  if (option == 3) o.window_right = 3;
  if (option == 4) o.window_left = 33, o.window_right = 65;
  if (option == 5) o.causal = true, o.window_left = 16;
  if (option == 6) o.causal = true, o.softcap = 2;
  if (option == 7) o.scale = 0.7f;
  if (option == 8) o.causal = true, o.deterministic = false;
}

}  // namespace

TEST_CASE("every option on both kinds of kernel and all types") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const Layout layout : {Layout::aligned, Layout::padded})
      for (const std::int64_t d : {64, 128, 256, 40})
        for (int option = 0; option < kOptions; ++option) {
          Problem p = problem(1, 150, 190, 2, 1, d, dtype, layout);
          set_option(p, option);
          agrees(gpu.context(), p);
        }
}

TEST_CASE("lengths about the tiles, rows without keys, grouped heads") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const auto& [seq_q, seq_k] : std::array<std::array<std::int64_t, 2>, 12>{{{1, 1},
                                                                                 {2, 5},
                                                                                 {5, 2},
                                                                                 {63, 64},
                                                                                 {65, 127},
                                                                                 {128, 128},
                                                                                 {129, 129},
                                                                                 {192, 193},
                                                                                 {193, 64},
                                                                                 {257, 100},
                                                                                 {100, 257},
                                                                                 {239, 1}}})
    for (const std::int64_t d : {64, 128, 256}) {
      Problem p = problem(2, seq_q, seq_k, 4, 2, d, DType::bf16, Layout::aligned);
      p.options.causal = true;
      agrees(gpu.context(), p);
    }
}

TEST_CASE("every width of the widest row") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const std::int64_t d : {136, 192, 256}) {
    Problem p = problem(1, 170, 200, 2, 2, d, DType::f16, Layout::aligned);
    p.options.causal = true;
    agrees(gpu.context(), p);
  }
}

TEST_CASE("widths that no tensor core row takes") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const std::int64_t d : {1, 7, 100}) {
    Problem p = problem(1, 40, 50, 2, 2, d, DType::bf16, Layout::dense);
    agrees(gpu.context(), p);
  }
}

TEST_CASE("packed documents: empty ones, tails that belong to none") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const std::int64_t d : {64, 128, 256})
      for (const bool causal : {false, true}) {
        Problem p = problem(1, 400, 420, 4, 2, d, dtype, Layout::aligned);
        p.cu_q = {0, 0, 100, 101, 330, 370}, p.cu_k = {0, 20, 130, 131, 131, 400};
        p.cu_dtype = causal ? DType::i64 : DType::i32;
        p.options.causal = causal;
        agrees(gpu.context(), p);
      }
}

TEST_CASE("dropout is the contract's mask") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  Problem p = problem(2, 60, 60, 2, 1, 64, DType::f32, Layout::aligned);
  p.dropout = 0.3, p.state.seed = 11;
  agrees(gpu.context(), p);
}

TEST_CASE("huge scores leave rows one-hot, not NaN") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  Problem p = problem(1, 1, 1, 1, 1, 64, DType::bf16, Layout::aligned);
  Inputs inputs = normal_inputs(p, 3);
  for (auto* x : {&inputs.q, &inputs.k, &inputs.v}) std::fill(x->begin(), x->end(), 133120);
  CHECK(disagreement(p, run_on_gpu(gpu.context(), p, inputs), expect_outputs(p, inputs)) == "");

  // dQ's first column is a sum that cancels, of rounded dS times 480,000: many rows, so that the
  // plain error is met as well.
  p = problem(1, 60, 100, 8, 8, 64, DType::bf16, Layout::aligned);
  inputs = normal_inputs(p, 4);
  std::fill(inputs.q.begin(), inputs.q.end(), 0), std::fill(inputs.k.begin(), inputs.k.end(), 0);
  for (std::size_t i = 0; i < inputs.q.size(); i += 64) inputs.q[i] = 1;
  for (std::size_t i = 0; i < inputs.k.size(); i += 64) inputs.k[i] = -6e4 * 8;
  round_inputs(inputs, p.dtype);
  CHECK(disagreement(p, run_on_gpu(gpu.context(), p, inputs), expect_outputs(p, inputs)) == "");
}

TEST_CASE("same bits again and again, beside a busy second stream") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const std::int64_t d : {64, 128, 256}) {
    Problem p = problem(2, 600, 600, 4, 2, d, DType::bf16, Layout::aligned);
    p.options.causal = true;
    const Inputs inputs = normal_inputs(p, 5);
    const Outputs first = run_on_gpu(gpu.context(), p, inputs);
    const std::unique_ptr<Stream> other = gpu.device->make_stream();
    const auto busy = gpu.device->allocate(1 << 26), from = gpu.device->allocate_host(1 << 26);
    for (int i = 0; i < 30; ++i) {
      gpu.device->copy_to_device(*other, busy->data(), from->data(), 1 << 26);
      const Outputs again = run_on_gpu(gpu.context(), p, inputs);
      REQUIRE(again.o == first.o);
      REQUIRE(again.dq == first.dq);
      REQUIRE(again.dk == first.dk);
      REQUIRE(again.dv == first.dv);
    }
    other->synchronize();
  }
}

TEST_CASE("more than 65535 heads times batch") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  Problem p = problem(9000, 3, 3, 8, 8, 64, DType::bf16, Layout::dense);
  const Inputs inputs = normal_inputs(p, 6);
  const Outputs got = run_on_gpu(gpu.context(), p, inputs);
  Problem last = p;  // the last batch element alone
  last.batch = 1;
  Inputs tail;
  const std::size_t size = 3 * 8 * 64;
  const auto end = [&](const std::vector<double>& x, std::size_t n) {
    return std::vector<double>(x.end() - static_cast<std::ptrdiff_t>(n), x.end());
  };
  tail.q = end(inputs.q, size), tail.k = end(inputs.k, size), tail.v = end(inputs.v, size);
  tail.d_o = end(inputs.d_o, size);
  Outputs there;
  there.o = end(got.o, size), there.m = end(got.m, 24), there.l = end(got.l, 24);
  there.dq = end(got.dq, size), there.dk = end(got.dk, size), there.dv = end(got.dv, size);
  CHECK(disagreement(last, there, expect_outputs(last, tail)) == "");
}
