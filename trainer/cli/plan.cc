// tilefold plan CONFIG [--set a.b=c ...] [--device cpu|h200] [--memory 141GB] [--json]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/cli/commands.h"
#include "trainer/message.h"
#include "trainer/ranks.h"
#include "trainer/report/memory_report.h"
#include "trainer/session.h"

namespace tilefold {
namespace {

constexpr std::int64_t kMostContext = std::int64_t{1} << 32;  // where the search for a context ends

struct PlanCommand {
  std::string config;
  std::vector<std::string> set;
  std::string device = "cpu";
  std::string memory;
  int ranks = 1;
  bool json = false;
};

// Plans read the data only where the vocabulary's size comes from it.
Config planned_config(const PlanCommand& options) {
  Config config = load_config(options.config, options.set);
  if (config.model.vocab == 0) config = resolve(config, *open_dataset(config));
  return config;
}

// This machine's CPU as a rank will see it (its threads have workspaces), or a described device.
DeviceInfo planned_device(const PlanCommand& options, const Config& config) {
  if (options.device != "cpu") return describe_device(options.device);
  return open_cpu_device(threads_of(config.run, options.ranks))->info();
}

// Bytes of the arenas with another context. The data need not have such long samples.
std::int64_t bytes_at(Config config, const DeviceInfo& device, int ranks, std::int64_t context) {
  config.model.context = context;
  try {
    return plan_training(config, device, ranks).plan.arena_bytes();
  } catch (const UsageError&) {  // larger than every memory
    return std::numeric_limits<std::int64_t>::max();
  }
}

void print_longest(const Config& config, const DeviceInfo& device, int ranks, std::int64_t memory,
                   bool with_naive) {
  auto longest = [&](const Config& c) {
    return longest_context([&](std::int64_t n) { return bytes_at(c, device, ranks, n); }, memory,
                           kMostContext);
  };
  auto line = [](const char* what, std::int64_t n) {
    if (n == 0)
      fmt::print("  {:22} none\n", what);
    else
      fmt::print("  {:22} {} tokens\n", what, n);
  };
  fmt::print("longest context that fits in {} ({} bytes), micro-batch {}:\n", human_bytes(memory),
             memory, split_batch(config.train, ranks).micro);
  line("this config", longest(config));
  if (with_naive) line("with naive attention", longest(with_naive_attention(config)));
}

void run(const PlanCommand& options) {
  const Config config = planned_config(options);
  message(keys_read_text(options.config, config));
  const DeviceInfo device = planned_device(options, config);
  std::int64_t memory = config.memory.limit > 0 ? config.memory.limit : device.memory_bytes;
  if (!options.memory.empty()) memory = parse_bytes(options.memory, "--memory");
  const RunPlan run = plan_training(config, device, options.ranks);
  if (options.json) {
    fmt::print("{}\n", plan_json(run.plan));
    return;
  }
  const auto naive = plan_naive_training(config, device, options.ranks);
  fmt::print("{}", plan_table(run.plan, naive ? &naive->plan : nullptr));
  if (!naive)
    fmt::print(
        "with naive attention the scores are larger than every memory, or the device has none\n");
  if (memory > 0) print_longest(config, device, options.ranks, memory, naive.has_value());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Print the bytes of every tensor of a training run before it starts, beside those of the "
      "same run with attention that stores its scores. Needs neither the device nor much memory.");
  command->add_option("config", options->config, "YAML file (keys: tilefold --help-config)")
      ->required();
  command
      ->add_option("--set", options->set, "override a key: --set model.context=65536 (repeatable)")
      ->type_name("KEY=VALUE");
  command->add_option("--device", options->device, "cpu: this machine; h200: a described one")
      ->capture_default_str();
  command->add_option("--memory", options->memory,
                      "say the longest context that fits in this much: 24GB, 2GiB, bytes");
  command->add_option("--ranks", options->ranks, "ranks that share the global batch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", options->json, "as JSON");
  command->callback([options] { run(*options); });
}

}  // namespace tilefold
