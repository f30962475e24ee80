#include "trainer/cli/attention.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "ops/ops.h"

namespace tilefold {
namespace {

const std::vector<std::string> kStrategies = {"auto", "naive", "tiled", "split", "decode"};
const std::vector<std::string> kDevices = {"auto", "cpu", "cuda"};
const std::vector<std::string> kDtypes = {"f32", "bf16", "f16"};

const auto kAtLeastOne = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);

void add_run(CLI::App& attention) {
  auto settings = std::make_shared<AttentionRunSettings>();
  CLI::App* run = attention.add_subcommand("run", "Attention on the arrays of an HDF5 file.");
  run->add_option("in", settings->in,
                  "HDF5 file: q k v [batch, seq, heads, d] float32, optionally do (backward runs "
                  "too), cu_seqlens_q, cu_seqlens_k; root attributes causal, window_left, "
                  "window_right, scale, softcap, deterministic")
      ->required();
  run->add_option("out", settings->out,
                  "HDF5 file to write: o m l lse, with do also dq dk dv, float32")
      ->required();
  run->add_option("--device", settings->device, "where to run")->check(CLI::IsMember(kDevices));
  run->add_option("--dtype", settings->dtype, "storage type of the computation")
      ->check(CLI::IsMember(kDtypes));
  run->add_option("--strategy", settings->strategy, "strategy; auto picks by shape")
      ->check(CLI::IsMember(kStrategies));
  run->add_option("--threads", settings->threads, "CPU threads; 0: all allowed cores")
      ->check(CLI::Range(0, 4096));
  run->callback([settings] { attention_run(*settings); });
}

struct ExplainSettings {
  std::int64_t seq = 0, seq_k = 0, batch = 1, heads = 1, kv_heads = 0, d = 64;
  std::vector<std::int64_t> window = {-1, -1};
  bool causal = false, backward = false;
  std::string dtype = "f32", strategy = "auto", device = "auto";
};

// "auto", "cpu" and "cuda" are devices of this machine, other names descriptions of one.
DeviceInfo device_info(const std::string& name) {
  for (const std::string& here : kDevices)
    if (name == here) return open_device(name)->info();
  return describe_device(name);
}

void explain(const ExplainSettings& settings) {
  AttentionProblem p;
  p.batch = settings.batch;
  p.seq_q = p.max_seq_q = settings.seq;
  p.seq_k = p.max_seq_k = settings.seq_k > 0 ? settings.seq_k : settings.seq;
  p.heads = settings.heads;
  p.kv_heads = settings.kv_heads > 0 ? settings.kv_heads : settings.heads;
  p.d = settings.d;
  p.dtype = parse_dtype(settings.dtype);
  p.options.causal = settings.causal;
  p.options.window_left = settings.window[0];
  p.options.window_right = settings.window[1];
  p.options.strategy = parse_attention_strategy(settings.strategy);
  p.backward = settings.backward;
  if (p.heads % p.kv_heads != 0)
    throw UsageError(
        str("--kv-heads is ", p.kv_heads, "; allowed: a divisor of --heads ", p.heads));

  const DeviceInfo device = device_info(settings.device);
  std::fputs(explain_attention(p, device).c_str(), stdout);
  const AttentionChoice choice = select_attention(p, device);
  const Cost cost = attention_cost(p, choice.strategy);
  std::printf("predicted: %.6g GFLOP, %.6g MB moved, %.3g flops a byte\n", cost.flops / 1e9,
              cost.bytes / 1e6, cost.bytes > 0 ? cost.flops / cost.bytes : 0);
}

void add_window(CLI::App& command, std::vector<std::int64_t>& window) {
  command.add_option("--window", window, "keys seen left and right of the diagonal; -1: no limit")
      ->expected(2)
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40));
}

void add_explain(CLI::App& attention) {
  auto s = std::make_shared<ExplainSettings>();
  CLI::App* command = attention.add_subcommand(
      "explain", "The table that picks a strategy, and its pick for a shape.");
  command->add_option("--seq", s->seq, "queries (and keys, without --seq-k)")
      ->default_str("")
      ->required()
      ->check(kAtLeastOne);
  command->add_option("--seq-k", s->seq_k, "keys; default: as queries")
      ->check(kAtLeastOne)
      ->default_str("");
  command->add_option("--batch", s->batch, "batch elements")->check(kAtLeastOne);
  command->add_option("--heads", s->heads, "query heads")->check(kAtLeastOne);
  command->add_option("--kv-heads", s->kv_heads, "kv heads; default: heads")
      ->check(kAtLeastOne)
      ->default_str("");
  command->add_option("--d", s->d, "head width")->check(CLI::Range(1, 256));
  command->add_flag("--causal", s->causal, "bottom-right causal mask");
  command->add_flag("--backward", s->backward, "the pick for backward");
  add_window(*command, s->window);
  command->add_option("--dtype", s->dtype, "storage type")->check(CLI::IsMember(kDtypes));
  command->add_option("--strategy", s->strategy, "strategy")->check(CLI::IsMember(kStrategies));
  command->add_option("--device", s->device,
                      "auto, cpu, cuda (of this machine), or a description: h200");
  command->callback([s] { explain(*s); });
}

void add_bench(CLI::App& attention) {
  auto s = std::make_shared<AttentionBenchSettings>();
  CLI::App* command = attention.add_subcommand(
      "bench", "Time, predicted and achieved flops and bytes, of every combination of the lists.");
  command->add_option("--seq", s->seq, "sequence lengths")->delimiter(',')->check(kAtLeastOne);
  command->add_option("--d", s->d, "head widths")->delimiter(',')->check(CLI::Range(1, 256));
  command->add_option("--causal", s->causal, "masks: 0, 1")
      ->delimiter(',')
      ->check(CLI::Range(0, 1));
  command->add_option("--strategy", s->strategy, "strategies")
      ->delimiter(',')
      ->check(CLI::IsMember(kStrategies));
  command->add_option("--dtype", s->dtype, "storage types")
      ->delimiter(',')
      ->check(CLI::IsMember(kDtypes));
  command->add_option("--seq-k", s->seq_k, "keys; default: the sequence length")
      ->check(kAtLeastOne)
      ->default_str("");
  command->add_option("--batch", s->batch, "batch elements")->check(kAtLeastOne);
  command->add_option("--heads", s->heads, "query heads")->check(kAtLeastOne);
  command->add_option("--kv-heads", s->kv_heads, "kv heads; default: heads")
      ->check(kAtLeastOne)
      ->default_str("");
  add_window(*command, s->window);
  command->add_option("--device", s->device, "where to run")->check(CLI::IsMember(kDevices));
  command->add_option("--threads", s->threads, "CPU threads; 0: all allowed cores")
      ->check(CLI::Range(0, 4096));
  command->add_option("--seconds", s->seconds, "spent on each row at least")
      ->check(CLI::Range(0.0, 3600.0));
  command->add_flag("--forward-only", s->forward_only, "no backward");
  command->add_flag("--csv", s->csv, "comma-separated values instead of a table");
  command->callback([s] { attention_bench(*s); });
}

}  // namespace

void add_attention_commands(CLI::App& app) {
  CLI::App* attention =
      app.add_subcommand("attention", "The attention component: on files, its choices, its speed.");
  attention->require_subcommand(1);
  attention->option_defaults()->always_capture_default();  // its commands inherit it
  add_run(*attention);
  add_explain(*attention);
  add_bench(*attention);
}

}  // namespace tilefold
