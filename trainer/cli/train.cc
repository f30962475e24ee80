// tilefold train CONFIG [--set a.b=c ...] [--resume | --overwrite]
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "trainer/cli/commands.h"
#include "trainer/loop.h"
#include "trainer/message.h"
#include "trainer/ranks.h"

namespace tilefold {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> set;
  bool resume = false, overwrite = false;
};

void run(const TrainOptions& options) {
  const ExistingRun existing = options.resume      ? ExistingRun::resume
                               : options.overwrite ? ExistingRun::overwrite
                                                   : ExistingRun::refuse;
  const std::unique_ptr<Communicator> comm = open_communicator(nullptr, nullptr);
  Config config;
  together(*comm, [&] { config = load_config(options.config, options.set); });
  if (comm->rank() == 0) message(keys_read_text(options.config, config));
  int status = 0;
  or_abort(*comm, [&] { status = train(config, existing, *comm); });
  if (status != 0) throw ExitStatus{status};
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a model from a config; writes metrics, a memory report and checkpoints to run.out.\n"
      "On several ranks: mpirun -np N tilefold train CONFIG (the same global batch for every N).");
  command->add_option("config", options->config, "YAML file (keys: tilefold --help-config)")
      ->required();
  command->add_option("--set", options->set, "override a key: --set train.steps=500 (repeatable)")
      ->type_name("KEY=VALUE");
  CLI::Option* resume =
      command->add_flag("--resume", options->resume,
                        "continue from the newest checkpoint in run.out, if there is one");
  command->add_flag("--overwrite", options->overwrite, "remove the run that lies in run.out first")
      ->excludes(resume);
  command->callback([options] { run(*options); });
}

}  // namespace tilefold
