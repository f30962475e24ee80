// `tilefold attention bench`: time beside predicted and achieved flops and bytes, and the share of
// the roofline: the least time that the predicted flops and bytes take at the device's ceilings,
// measured first, over the time that they took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "ops/ops.h"
#include "trainer/cli/attention.h"
#include "trainer/cli/device_array.h"
#include "trainer/unused_gpu.h"

namespace tilefold {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Timing {
  double median = 0, fastest = 0;  // seconds
  int runs = 0;
};

// Runs `work` once to warm up, then until `seconds` are spent, three times at least.
template <class Work>
Timing measure(double seconds, Work&& work) {
  work();
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point begin = Clock::now();
    work();
    times.push_back(seconds_since(begin));
  } while (times.size() < 3 || seconds_since(start) < seconds);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0], static_cast<int>(times.size())};
}

std::span<std::byte> bytes_of(const DeviceArray& x) {
  return {static_cast<std::byte*>(x.view().data), static_cast<std::size_t>(x.view().bytes())};
}

std::vector<float> random_values(const Shape& shape, std::uint32_t seed) {
  constexpr std::size_t kDrawn = 4194301;  // a prime: rows of a long cache differ when it repeats
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  const std::size_t drawn = std::min(values.size(), kDrawn);
  for (std::size_t i = 0; i < drawn; ++i) values[i] = normal(random);
  for (std::size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  return values;
}

// What the device reaches, a second: a large matrix product in the type, and a large copy, bytes
// read and written.
struct Ceilings {
  double flops = 0, bytes = 0;
};

Ceilings measure_ceilings(Context ctx, DType dtype) {
  constexpr double kSeconds = 0.1;
  const DeviceInfo& info = ctx.device.info();
  const bool gpu = info.kind == DeviceKind::cuda;
  const std::int64_t n = gpu ? 4096 : 1024, copied = 1 << 29;
  Ceilings found;
  const Shape square{n, n};
  const DeviceArray x(ctx, dtype, square, random_values(square, 1));
  const DeviceArray weight(ctx, dtype, square, random_values(square, 2)), y(ctx, dtype, square);
  LinearForward product;
  product.x = x.view(), product.weight = weight.view(), product.y = y.view();
  const DeviceArray workspace(ctx, DType::u8, {linear_workspace({n, n, n, dtype}, info)});
  product.workspace = bytes_of(workspace);
  found.flops = 2.0 * static_cast<double>(n * n * n) / measure(kSeconds, [&] {
                                                         ops::linear_forward(ctx, product);
                                                         ctx.stream.synchronize();
                                                       }).fastest;
  const DeviceArray from(ctx, DType::u8, {copied}), to(ctx, DType::u8, {copied});
  ops::copy(ctx, {.src = to.view(), .dst = from.view()});  // pages never written are not read
  found.bytes =
      2.0 * static_cast<double>(copied) / measure(kSeconds, [&] {
                                            ops::copy(ctx, {.src = from.view(), .dst = to.view()});
                                            ctx.stream.synchronize();
                                          }).fastest;
  return found;
}

void print_header(bool csv) {
  if (csv)
    std::puts(
        "strategy,dtype,batch,heads,kv_heads,seq_q,seq_k,d,causal,window_left,window_right,pass,"
        "threads,runs,ms,fastest_ms,predicted_gflop,achieved_gflops,predicted_mb,achieved_gbs,"
        "workspace_bytes,ceiling_gflops,ceiling_gbs,roofline");
  else
    std::printf("%-8s %-5s %-12s %13s %4s %-7s %-8s %10s %9s %9s %9s %9s %8s %11s\n", "strategy",
                "dtype", "batch x head", "seq", "d", "mask", "pass", "ms", "GFLOP", "GFLOP/s", "MB",
                "GB/s", "roofline", "workspace");
}

void print_row(const AttentionProblem& p, const AttentionChoice& choice, int threads,
               const Timing& t, const Ceilings& ceilings, bool csv) {
  const Cost cost = attention_cost(p, choice.strategy);
  const double share =
      std::max(cost.flops / ceilings.flops, cost.bytes / ceilings.bytes) / t.median;
  const char* pass = p.backward ? "backward" : "forward";
  const std::string strategy(name_of(choice.strategy)), dtype(name_of(p.dtype));
  const auto wide = [](std::int64_t x) { return static_cast<long long>(x); };
  if (csv) {
    std::printf(
        "%s,%s,%lld,%lld,%lld,%lld,%lld,%lld,%d,%lld,%lld,%s,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%"
        "lld,%.6g,%.6g,%.4g\n",
        strategy.c_str(), dtype.c_str(), wide(p.batch), wide(p.heads), wide(p.kv_heads),
        wide(p.seq_q), wide(p.seq_k), wide(p.d), p.options.causal ? 1 : 0,
        wide(p.options.window_left), wide(p.options.window_right), pass, threads, t.runs,
        t.median * 1e3, t.fastest * 1e3, cost.flops / 1e9, cost.flops / t.median / 1e9,
        cost.bytes / 1e6, cost.bytes / t.median / 1e9, wide(choice.workspace_bytes),
        ceilings.flops / 1e9, ceilings.bytes / 1e9, share);
    std::fflush(stdout);
    return;
  }
  const bool window = p.options.window_left >= 0 || p.options.window_right >= 0;
  std::string heads = str(p.batch, " x ", p.heads);
  if (p.kv_heads != p.heads) heads += str("/", p.kv_heads);
  std::printf(
      "%-8s %-5s %-12s %13s %4lld %-7s %-8s %10.3f %9.4g %9.4g %9.4g %9.3g %7.0f%% %11lld\n",
      strategy.c_str(), dtype.c_str(), heads.c_str(), str(p.seq_q, "x", p.seq_k).c_str(), wide(p.d),
      window             ? "window"
      : p.options.causal ? "causal"
                         : "full",
      pass, t.median * 1e3, cost.flops / 1e9, cost.flops / t.median / 1e9, cost.bytes / 1e6,
      cost.bytes / t.median / 1e9, 100 * share, wide(choice.workspace_bytes));
  std::fflush(stdout);
}

// One shape: forward, then backward on its results.
void bench_problem(Context ctx, AttentionProblem p, const Ceilings& ceilings,
                   const AttentionBenchSettings& settings) {
  const DeviceInfo& info = ctx.device.info();
  const Shape qs{p.batch, p.seq_q, p.heads, p.d}, ks{p.batch, p.seq_k, p.kv_heads, p.d};
  const Shape rows{p.batch, p.heads, p.seq_q};
  const auto input = [&](const Shape& shape, std::uint32_t seed) {
    return DeviceArray(ctx, p.dtype, shape, random_values(shape, seed));
  };
  const DeviceArray q = input(qs, 1), k = input(ks, 2), v = input(ks, 3), o(ctx, p.dtype, qs);
  const DeviceArray m(ctx, DType::f32, rows), l(ctx, DType::f32, rows);
  const auto workspace_of = [&] {
    return DeviceArray(ctx, DType::u8, {ops::attention_workspace(p, info)});
  };

  AttentionForward forward;
  forward.q = q.view(), forward.k = k.view(), forward.v = v.view();
  forward.o = o.view(), forward.m = m.view(), forward.l = l.view();
  forward.options = p.options;
  const DeviceArray workspace = workspace_of();
  forward.workspace = bytes_of(workspace);
  const Timing there = measure(settings.seconds, [&] {
    ops::attention_forward(ctx, forward);
    ctx.stream.synchronize();
  });
  print_row(p, select_attention(p, info), info.processors, there, ceilings, settings.csv);
  if (settings.forward_only) return;

  p.backward = true;
  const DeviceArray d_o = input(qs, 4), dq(ctx, p.dtype, qs), dk(ctx, p.dtype, ks),
                    dv(ctx, p.dtype, ks);
  AttentionBackward backward;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.o = o.view(), backward.m = m.view(), backward.l = l.view(), backward.d_o = d_o.view();
  backward.dq = dq.view(), backward.dk = dk.view(), backward.dv = dv.view();
  backward.options = p.options;
  const DeviceArray more = workspace_of();
  backward.workspace = bytes_of(more);
  const Timing back = measure(settings.seconds, [&] {
    ops::attention_backward(ctx, backward);
    ctx.stream.synchronize();
  });
  print_row(p, select_attention(p, info), info.processors, back, ceilings, settings.csv);
}

}  // namespace

void attention_bench(const AttentionBenchSettings& settings) {
  if (settings.kv_heads > 0 && settings.heads % settings.kv_heads != 0)
    throw UsageError(str("--kv-heads is ", settings.kv_heads, "; allowed: a divisor of --heads ",
                         settings.heads));
  const std::unique_ptr<Device> device = open_device(settings.device, 0, settings.threads);
  mention_unused_gpu(settings.device, device->info());
  const std::unique_ptr<Stream> stream = device->make_stream();
  if (!settings.csv) std::printf("%s\n", device->info().name.c_str());
  if (settings.csv) print_header(true);
  for (const std::string& dtype : settings.dtype) {
    const Ceilings ceilings = measure_ceilings({*device, *stream}, parse_dtype(dtype));
    if (!settings.csv)
      std::printf("%s: %.4g GFLOP/s of a large matrix product, %.4g GB/s of a large copy\n",
                  dtype.c_str(), ceilings.flops / 1e9, ceilings.bytes / 1e9);
    if (!settings.csv) print_header(false);
    for (std::int64_t d : settings.d)
      for (int causal : settings.causal)
        for (std::int64_t seq : settings.seq)
          for (const std::string& strategy : settings.strategy) {
            AttentionProblem p;
            p.batch = settings.batch;
            p.heads = settings.heads;
            p.kv_heads = settings.kv_heads > 0 ? settings.kv_heads : settings.heads;
            p.seq_q = p.max_seq_q = seq;
            p.seq_k = p.max_seq_k = settings.seq_k > 0 ? settings.seq_k : seq;
            p.d = d;
            p.dtype = parse_dtype(dtype);
            p.options.causal = causal != 0;
            p.options.window_left = settings.window[0];
            p.options.window_right = settings.window[1];
            p.options.strategy = parse_attention_strategy(strategy);
            bench_problem({*device, *stream}, p, ceilings, settings);
          }
  }
}

}  // namespace tilefold
