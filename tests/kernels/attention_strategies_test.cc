// Every strategy and every portable kernel on the GPU against the float64 reference (rule 10),
// option by option; what the table picks by itself is in attention_test.cc.
#include <array>

#include "kernels/attention/select.h"
#include "tests/catch.h"
#include "tests/kernels/gpu_run.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

using enum AttentionStrategy;

struct Size {
  std::int64_t batch, seq_q, seq_k, heads, kv_heads, d;
};

Problem problem(AttentionStrategy strategy, const Size& s, DType dtype,
                Layout layout = Layout::aligned) {
  Problem p;
  p.batch = s.batch, p.seq_q = s.seq_q, p.seq_k = s.seq_k, p.heads = s.heads;
  p.kv_heads = s.kv_heads, p.d = s.d, p.dtype = dtype, p.layout = layout;
  p.options.strategy = strategy;
  return p;
}

void agrees(Context ctx, const Problem& p, std::uint64_t seed = 1) {
  const Inputs inputs = normal_inputs(p, seed);
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
  if (option == 8) o.causal = true, p.dropout = 0.3, p.state.seed = 5, p.state.first_sample = 3;
}

constexpr std::array kTypes = {DType::bf16, DType::f16, DType::f32};
constexpr std::array kStrategies = {tiled, split, decode, naive};

}  // namespace

TEST_CASE("every option of every strategy, all types") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies)
    for (const DType dtype : kTypes)
      for (int option = 0; option < kOptions; ++option) {
        Problem p = problem(strategy, {1, 150, 290, 2, 1, 64}, dtype,
                            option % 2 == 0 ? Layout::aligned : Layout::padded);
        set_option(p, option);
        agrees(gpu.context(), p);
      }
}

TEST_CASE("every width of every strategy") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies)
    for (const DType dtype : kTypes)
      for (const std::int64_t d : {1, 7, 40, 100, 128, 136, 200, 256}) {
        Problem p = problem(strategy, {1, 70, 270, 2, 1, d}, dtype,
                            d % 16 == 8 ? Layout::dense : Layout::aligned);
        p.options.causal = d > 100;
        if (d == 256) p.dropout = 0.2, p.state.step = 4;
        agrees(gpu.context(), p);
      }
}

TEST_CASE("lengths about the tiles, rows without keys, on every strategy") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies)
    for (const auto& [seq_q, seq_k] : std::array<std::array<std::int64_t, 2>, 10>{{{1, 1},
                                                                                   {2, 5},
                                                                                   {5, 2},
                                                                                   {63, 64},
                                                                                   {65, 129},
                                                                                   {128, 128},
                                                                                   {193, 64},
                                                                                   {64, 513},
                                                                                   {239, 1},
                                                                                   {3, 1000}}})
      for (const bool causal : {false, true}) {
        Problem p = problem(strategy, {2, seq_q, seq_k, 4, 2, 64},
                            seq_q % 2 == 0 ? DType::f16 : DType::bf16);
        p.options.causal = causal;
        agrees(gpu.context(), p);
      }
}

TEST_CASE("packed documents on every strategy") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies)
    for (const DType dtype : kTypes)
      for (const bool causal : {false, true}) {
        Problem p = problem(strategy, {1, 300, 420, 4, 2, 64}, dtype,
                            causal ? Layout::aligned : Layout::padded);
        p.cu_q = {0, 0, 90, 91, 250, 270}, p.cu_k = {0, 20, 131, 132, 132, 400};
        p.cu_dtype = causal ? DType::i64 : DType::i32;
        p.options.causal = causal;
        if (causal) p.dropout = 0.4, p.options.dropout.rows_per_sample = 75;
        agrees(gpu.context(), p);
      }
}

TEST_CASE("flash-attention#1786: more than 65535 packed documents on every strategy") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies) {
    Problem p = problem(strategy, {1, 140000, 140000, 1, 1, 64}, DType::bf16, Layout::dense);
    for (std::int64_t x = 0; x <= 70000; ++x) p.cu_q.push_back(2 * x);
    p.cu_k = p.cu_q;
    p.options.causal = true;
    agrees(gpu.context(), p);
  }
}

TEST_CASE("decoding: few queries, grouped heads, long caches") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : kTypes)
    for (const std::int64_t d : {64, 128, 256})
      for (const auto& [queries, heads, kv_heads] : std::array<std::array<std::int64_t, 3>, 5>{
               {{1, 8, 1}, {1, 2, 2}, {16, 1, 1}, {3, 6, 2}, {5, 8, 1}}}) {
        Problem p = problem(automatic, {2, queries, 2100, heads, kv_heads, d}, dtype);
        p.options.causal = true;
        if (queries == 3) p.options.window_left = 500;
        const Inputs inputs = normal_inputs(p, 9);
        CHECK(disagreement(p, run_on_gpu(gpu.context(), p, inputs, Passes::forward),
                           expect_outputs(p, inputs, Passes::forward)) == "");
      }
}

TEST_CASE("few query tiles: parts of the keys, in every number of them") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  // On Hopper clusters of 16, 16, 8, 4, 2, 1, 1 blocks; tiles of 64 rows, but 128 where heads are
  // wide and parts long. The last two, without a mask and d to 64: 128 rows by three warpgroups.
  for (const auto& [queries, keys, heads] :
       std::array<std::array<std::int64_t, 3>, 9>{{{60, 2100, 2},
                                                   {130, 5000, 2},
                                                   {200, 1030, 3},
                                                   {500, 600, 2},
                                                   {700, 700, 4},
                                                   {1000, 120, 8},
                                                   {2000, 300, 4},
                                                   {2000, 300, 5},
                                                   {1500, 900, 6}}})
    for (const std::int64_t d : {40, 64, 128})
      for (const int option : {0, 1, 4, 6}) {
        Problem p = problem(d == 40 ? split : automatic, {1, queries, keys, heads, heads, d},
                            d == 64 ? DType::f16 : DType::bf16);
        set_option(p, option);
        const Inputs inputs = normal_inputs(p, 10);
        CHECK(disagreement(p, run_on_gpu(gpu.context(), p, inputs, Passes::forward),
                           expect_outputs(p, inputs, Passes::forward)) == "");
      }
}

TEST_CASE("naive keeps its probabilities for backward") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : kTypes)
    for (const std::int64_t keys : {130, 128})
      for (int option = 0; option < kOptions; ++option) {
        Problem p = problem(naive, {2, 100, keys, 4, 2, 64}, dtype);
        set_option(p, option);
        p.keep_probabilities = true;
        agrees(gpu.context(), p);
      }
}

TEST_CASE("every strategy repeats its bits") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies) {
    Problem p = problem(strategy, {1, 200, 700, 4, 2, 128}, DType::bf16);
    p.options.causal = true, p.dropout = 0.1;
    const Inputs inputs = normal_inputs(p, 5);
    const Outputs first = run_on_gpu(gpu.context(), p, inputs);
    for (int i = 0; i < 10; ++i) {
      const Outputs again = run_on_gpu(gpu.context(), p, inputs);
      REQUIRE(again.o == first.o);
      REQUIRE(again.dq == first.dq);
      REQUIRE(again.dk == first.dk);
      REQUIRE(again.dv == first.dv);
    }
  }
}

TEST_CASE("sanitized: a small run of each kernel, for compute-sanitizer") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies)
    for (const DType dtype : {DType::bf16, DType::f32}) {
      Problem p = problem(strategy, {1, 70, 290, 2, 1, 64}, dtype);
      p.options.causal = true, p.dropout = 0.1;
      agrees(gpu.context(), p);
      if (strategy != split || dtype != DType::bf16) continue;
      p.dropout = 0;  // the Hopper row
      agrees(gpu.context(), p);
    }
}
