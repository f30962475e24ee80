// tilefold generate CHECKPOINT --prompt TEXT [--tokens N] [--temperature T | --greedy] [--top-k K]
#include "trainer/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/text_file.h"
#include "trainer/checkpoint.h"
#include "trainer/cli/commands.h"
#include "trainer/ranks.h"

namespace tilefold {
namespace {

struct GenerateCommand {
  std::string checkpoint, prompt, prompt_file;
  std::vector<std::string> set;
  std::int64_t tokens = 200;
  SamplingOptions sampling;
  bool greedy = false;
};

std::vector<std::int32_t> read_prompt(const GenerateCommand& options,
                                      const Vocabulary& vocabulary) {
  if (!options.prompt_file.empty())
    return vocabulary.encode(read_text_file(options.prompt_file), options.prompt_file);
  try {
    return vocabulary.encode(options.prompt, "--prompt");
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void run(GenerateCommand options) {
  if (options.greedy) options.sampling.temperature = 0;
  const std::unique_ptr<Communicator> comm = open_communicator(nullptr, nullptr);
  if (comm->size() > 1) throw UsageError("generate runs on one rank; start it without mpirun");
  const CheckpointReader file(find_checkpoint(options.checkpoint));
  const Config config = config_of(file, options.set);
  const Vocabulary vocabulary = Vocabulary::parse(file.text("vocabulary"));
  std::vector<std::int32_t> prompt = read_prompt(options, vocabulary);
  if (prompt.empty()) throw UsageError("--prompt is empty; allowed: at least one token");
  const std::int64_t length = static_cast<std::int64_t>(prompt.size()) + options.tokens;
  if (length > config.model.context)
    throw UsageError(str("prompt and --tokens make ", length, " tokens; the model's context is ",
                         config.model.context, ": ask for ",
                         config.model.context - (length - options.tokens),
                         " tokens at most, or shorten the prompt"));

  const std::unique_ptr<Device> device =
      open_device(config.run.device, 0, threads_of(config.run, comm->local_size()));
  const std::unique_ptr<Stream> stream = device->make_stream();
  const RunPlan run = plan_generation(config, device->info(), 1, length);
  Arena arena(*device, run.plan, memory_limit(config, *device, *comm));
  const Context ctx{*device, *stream};
  load_weights(file, run, arena, ctx);

  Sampler sampler(options.sampling, config.model.vocab);
  Generator generator(run, arena, ctx, config.model.vocab, vocabulary.size());
  const bool spaced =
      vocabulary.kind() == VocabularyKind::symbols || vocabulary.kind() == VocabularyKind::tokens;
  fmt::print("{}", vocabulary.decode(prompt));
  const auto before = std::chrono::steady_clock::now();
  generator(prompt, options.tokens, sampler, [&](std::int32_t token) {
    fmt::print("{}{}", spaced ? " " : "", vocabulary.decode({&token, 1}));
    std::fflush(stdout);
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  fmt::print("\n");
  fmt::print(stderr, "{} tokens in {:.2f} s, {:.1f} tokens/s; memory planned {} bytes\n",
             options.tokens, took.count(), static_cast<double>(options.tokens) / took.count(),
             run.plan.arena_bytes());
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateCommand>();
  CLI::App* command = app.add_subcommand(
      "generate", "Continue a prompt with a trained model, over a key/value cache.");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "a checkpoint, or a run's directory (its newest one)")
      ->required();
  CLI::Option* prompt = command->add_option(
      "--prompt", options->prompt, "text to continue; numbers where the data is made of tokens");
  command->add_option("--prompt-file", options->prompt_file, "read the prompt from a file")
      ->excludes(prompt);
  command->add_option("--tokens", options->tokens, "tokens to make")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  CLI::Option* temperature = command
                                 ->add_option("--temperature", options->sampling.temperature,
                                              "above 1 more varied, below 1 less; 0 is greedy")
                                 ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "draw from the k likeliest; 0: from all")
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "of the draws")->capture_default_str();
  command->add_flag("--greedy", options->greedy, "always the likeliest token")
      ->excludes(temperature);
  command->add_option("--set", options->set, "override a key of its config: --set run.device=cpu")
      ->type_name("KEY=VALUE");
  command->callback([options] { run(*options); });
}

}  // namespace tilefold
