// tilefold eval CHECKPOINT [--set a.b=c ...]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "trainer/checkpoint.h"
#include "trainer/cli/commands.h"
#include "trainer/evaluate.h"
#include "trainer/evaluation_text.h"
#include "trainer/ranks.h"

namespace tilefold {
namespace {

struct EvalCommand {
  std::string checkpoint;
  std::vector<std::string> set;
  std::int64_t batch = 0;
  bool json = false;
};

void print_json(const Evaluation& evaluation, bool task) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("val_loss", evaluation.loss());
  json.member("targets", static_cast<std::int64_t>(evaluation.targets()));
  if (task) json.member("accuracy", evaluation.accuracy());
  json.key("by_position").begin_array();
  for (int b = 0; b < Evaluation::kBuckets; ++b) {
    if (evaluation.targets(b) == 0) continue;
    json.begin_object().member("from", Evaluation::first_position(b));
    json.member("to", Evaluation::last_position(b)).member("loss", evaluation.loss(b));
    if (task) json.member("accuracy", evaluation.accuracy(b));
    json.end_object();
  }
  json.end_array().end_object();
  fmt::print("{}\n", text);
}

void run(const EvalCommand& options) {
  const std::unique_ptr<Communicator> comm = open_communicator(nullptr, nullptr);
  Session s;
  std::int64_t batch = 0, samples = 0;
  std::optional<CheckpointReader> file;
  Config config;
  together(*comm, [&] {
    file.emplace(find_checkpoint(options.checkpoint));
    config = config_of(*file, options.set);
  });
  const std::vector<RankGpu> gpus = assign_gpus(*comm, config.run.device);
  together(*comm, [&] {
    s.device = open_device(config.run.device, gpu_of(gpus, *comm),
                           threads_of(config.run, comm->local_size()));
    s.stream = s.device->make_stream();
    const Vocabulary trained = Vocabulary::parse(file->text("vocabulary"));
    s.data = open_dataset(config, &trained);
    s.config = resolve(config, *s.data);
    samples = evaluation_samples(s.config.train, *s.data);
    require(samples > 0, "data: the validation split has no sample to evaluate");
    batch = std::min(options.batch > 0 ? options.batch : s.config.train.micro_batch, samples);
    s.run = plan_evaluation(s.config, s.device->info(), batch, batch * s.data->most_documents());
    s.arena =
        std::make_unique<Arena>(*s.device, s.run.plan, memory_limit(s.config, *s.device, *comm));
    load_weights(*file, s.run, *s.arena, s.context());
  });
  or_abort(*comm, [&] {
    Evaluator evaluator(*comm, *s.data, s.run, *s.arena, s.context(), batch);
    const Evaluation evaluation = evaluator(samples);
    if (comm->rank() != 0) return;
    if (options.json)
      print_json(evaluation, s.data->task());
    else
      fmt::print("{}", evaluation_text(evaluation, s.data->task()));
  });
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto options = std::make_shared<EvalCommand>();
  CLI::App* command = app.add_subcommand(
      "eval", "Loss on the validation split, by position in the context, and a task's accuracy.");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "a checkpoint, or a run's directory (its newest one)")
      ->required();
  command->add_option("--set", options->set, "override a key of its config: --set data.path=FILE")
      ->type_name("KEY=VALUE");
  command->add_option("--batch", options->batch, "sequences a forward (default train.micro_batch)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_flag("--json", options->json, "as JSON");
  command->callback([options] { run(*options); });
}

}  // namespace tilefold
