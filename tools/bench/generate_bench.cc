// Times generation on a GPU: a 124M Llama-style model (configs/llama-124m.yaml) with random weights
// makes tokens behind prompts of these lengths, one sequence, bfloat16, greedily, as `tilefold
// generate` does.
//
//   generate_bench [LENGTH...]      1024 32768 262144
//
// A line a length: milliseconds a token and tokens/s, from the first token made to the last, beside
// copy bandwidth over the bytes that a token cannot do without: weights and cache, read once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "ops/ops.h"
#include "trainer/generate.h"

using namespace tilefold;

namespace {

constexpr std::int64_t kTokens = 256;  // made behind each prompt

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration took) {
  return std::chrono::duration<double, std::milli>(took).count();
}

Config model_of(std::int64_t context) {
  Config c;
  c.model.style = ModelStyle::llama;
  c.model.layers = 12;
  c.model.width = 768;
  c.model.heads = 12;
  c.model.kv_heads = 12;
  c.model.ffn_width = 2048;
  c.model.context = context;
  c.model.vocab = 50304;
  c.model.dtype = DType::bf16;
  c.model.residual_dtype = DType::bf16;
  c.model.tie_embeddings = true;
  return c;
}

// Bytes a second of a copy of a gibibyte, read and written: the median of 7.
double copy_bandwidth(Context ctx) {
  const std::int64_t bytes = std::int64_t{1} << 30;
  const auto from = ctx.device.allocate(bytes), to = ctx.device.allocate(bytes);
  const Tensor a(from->data(), DType::u8, {bytes}), b(to->data(), DType::u8, {bytes});
  ops::fill(ctx, {a, 1});
  std::vector<double> runs;
  for (int run = 0; run < 7; ++run) {
    ctx.stream.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < 10; ++i) ops::copy(ctx, {.src = a, .dst = b});
    ctx.stream.synchronize();
    runs.push_back(milliseconds(Clock::now() - start) / 10);
  }
  std::nth_element(runs.begin(), runs.begin() + 3, runs.end());
  return 2.0 * static_cast<double>(bytes) / runs[3] * 1e3;
}

void measure(Context ctx, std::int64_t length, double bandwidth) {
  const Config config = model_of(length + kTokens);
  const RunPlan run = plan_generation(config, ctx.device.info(), 1, length + kTokens);
  Arena arena(ctx.device, run.plan, ctx.device.free_bytes());
  run.model->initialize(ctx, arena, 1);
  Sampler sampler({.temperature = 0}, config.model.vocab);
  Generator generator(run, arena, ctx, config.model.vocab, config.model.vocab);
  std::mt19937 engine(2);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (std::int32_t& token : prompt)
    token = static_cast<std::int32_t>(engine() % static_cast<unsigned>(config.model.vocab));

  std::vector<Clock::time_point> times;
  times.reserve(kTokens);
  generator(prompt, kTokens, sampler, [&](std::int32_t) { times.push_back(Clock::now()); });
  const double ms = milliseconds(times.back() - times.front()) / (kTokens - 1);
  const double weights = 2.0 * static_cast<double>(run.model->parameter_count());
  const double cache = 2.0 * 2 * static_cast<double>(config.model.layers * config.model.width) *
                       static_cast<double>(length + kTokens / 2);
  const double floor = (weights + cache) / bandwidth * 1e3;
  std::printf("cache %8lld  %8.4f ms a token  %8.1f tokens/s  floor %7.4f ms  %5.1f%%\n",
              static_cast<long long>(length), ms, 1e3 / ms, floor, 100 * floor / ms);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::int64_t> lengths;
    for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty()) lengths = {1024, 32768, 262144};
    const auto device = open_device("cuda");
    const auto stream = device->make_stream();
    const Context ctx{*device, *stream};
    const double bandwidth = copy_bandwidth(ctx);
    std::printf("%s, copy %.0f GB/s\n", device->info().name.c_str(), bandwidth / 1e9);
    for (const std::int64_t length : lengths) measure(ctx, length, bandwidth);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
