// tilefold plan CONFIG [--set a.b=c ...] [--device cpu|h200] [--memory 141GB] [--json]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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

// A resolved config, and the most documents in a sample of its context; 0: not packed.
struct Planned {
  Config config;
  std::int64_t documents = 0;
};

// Plans read the data only where the vocabulary's size or the number of documents comes from it.
// The latter can be done without: a sample has no more documents than tokens.
Planned planned_run(const PlanCommand& options) {
  Planned planned{.config = load_config(options.config, options.set)};
  const Config& config = planned.config;
  const bool packed = config.data.end_of_document >= 0;
  if (config.model.vocab != 0 && !packed) return planned;
  try {
    const auto data = open_dataset(config);
    planned.config = resolve(config, *data);
    planned.documents = data->most_documents();
  } catch (const Error& error) {
    if (config.model.vocab == 0) throw;
    planned.documents = config.model.context;
    message(fmt::format("planned for as many documents as tokens, since the data cannot tell: {}\n",
                        error.what()));
  }
  return planned;
}

// This machine's CPU as a rank will see it (its threads have workspaces), or a described device.
DeviceInfo planned_device(const PlanCommand& options, const Config& config) {
  if (options.device != "cpu") return describe_device(options.device);
  return open_cpu_device(threads_of(config.run, options.ranks))->info();
}

// Bytes of the arenas with another context. The data need not have such long samples; that many of
// its own samples cover one, so their documents are enough.
std::int64_t bytes_at(Planned run, const DeviceInfo& device, int ranks, std::int64_t context) {
  const std::int64_t known = run.config.model.context;
  const std::int64_t samples = context / known + (context % known != 0 ? 1 : 0);
  run.config.model.context = context;
  try {
    return plan_training(run.config, device, ranks, std::min(context, samples * run.documents))
        .plan.arena_bytes();
  } catch (const UsageError&) {  // larger than every memory
    return std::numeric_limits<std::int64_t>::max();
  }
}

void print_longest(const Planned& run, const DeviceInfo& device, int ranks, std::int64_t memory,
                   bool with_naive) {
  auto longest = [&](const Planned& p) {
    return longest_context([&](std::int64_t n) { return bytes_at(p, device, ranks, n); }, memory,
                           kMostContext);
  };
  auto line = [](const char* what, std::int64_t n) {
    if (n == 0)
      fmt::print("  {:22} none\n", what);
    else
      fmt::print("  {:22} {} tokens\n", what, n);
  };
  fmt::print("longest context that fits in {} ({} bytes), micro-batch {}:\n", human_bytes(memory),
             memory, split_batch(run.config.train, ranks).micro);
  line("this config", longest(run));
  if (with_naive)
    line("with naive attention", longest({with_naive_attention(run.config), run.documents}));
}

void run(const PlanCommand& options) {
  const Planned planned = planned_run(options);
  const Config& config = planned.config;
  message(keys_read_text(options.config, config));
  const DeviceInfo device = planned_device(options, config);
  std::int64_t memory = config.memory.limit > 0 ? config.memory.limit : device.memory_bytes;
  if (!options.memory.empty()) memory = parse_bytes(options.memory, "--memory");
  const RunPlan run = plan_training(config, device, options.ranks, planned.documents);
  if (options.json) {
    fmt::print("{}\n", plan_json(run.plan));
    return;
  }
  const auto naive = plan_naive_training(config, device, options.ranks, planned.documents);
  fmt::print("{}", plan_table(run.plan, naive ? &naive->plan : nullptr));
  if (!naive)
    fmt::print(
        "with naive attention the scores are larger than every memory, or the device has none\n");
  if (memory > 0) print_longest(planned, device, options.ranks, memory, naive.has_value());
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
