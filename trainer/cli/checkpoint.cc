// tilefold checkpoint inspect FILE | compare FILE OTHER | verify FILE
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/cli/commands.h"
#include "trainer/ranks.h"
#include "trainer/report/memory_report.h"
#include "trainer/verify.h"

namespace tilefold {
namespace {

struct CheckpointCommand {
  std::string path, other;
  std::string device = "auto";
  int threads = 0;
};

bool same_bits(const CheckpointReader& a, const CheckpointReader& b, const std::string& name) {
  const Hdf5Info info = a.info(name), other = b.info(name);
  if (info.dtype != other.dtype || !(info.shape == other.shape)) return false;
  const auto bytes = static_cast<std::size_t>(info.bytes());
  std::vector<std::byte> x(bytes), y(bytes);
  a.read(name, Tensor(x.data(), info.dtype, info.shape));
  b.read(name, Tensor(y.data(), info.dtype, info.shape));
  return x == y;
}

void inspect(const CheckpointCommand& options) {
  const CheckpointReader file(find_checkpoint(options.path));
  fmt::print("{}\nstep {}, samples seen {}, seed {}\n\n{}\n", file.path(), file.number("step"),
             file.number("consumed"), file.number("seed"), file.text("config"));
  std::int64_t total = 0;
  const std::vector<std::string>& arrays = file.names();
  for (const std::string& name : arrays) {
    const Hdf5Info info = file.info(name);
    std::vector<std::byte> values(static_cast<std::size_t>(info.bytes()));
    file.read(name, Tensor(values.data(), info.dtype, info.shape));  // compares its checksum
    fmt::print("  {:44} {:5} {:22} {:>14}\n", name, name_of(info.dtype), info.shape.text(),
               info.bytes());
    total += info.bytes();
  }
  fmt::print("  {} bytes ({}) in {} arrays, every checksum holds\n", total, human_bytes(total),
             arrays.size());
}

// Arrays of two checkpoints, bit by bit; texts and numbers are left out (they name the run).
void compare(const CheckpointCommand& options) {
  const CheckpointReader a(find_checkpoint(options.path)), b(find_checkpoint(options.other));
  const std::vector<std::string>& names = a.names();
  std::vector<std::string> differing;
  for (const std::string& name : names) {
    if (!b.has(name) || !same_bits(a, b, name)) differing.push_back(name);
  }
  for (const std::string& name : b.names())
    if (!a.has(name)) differing.push_back(name);
  for (const std::string& name : differing) fmt::print("differs: {}\n", name);
  if (!differing.empty()) throw ExitStatus{1};
  fmt::print("the same bits in all {} arrays\n", names.size());
}

void verify(const CheckpointCommand& options) {
  const CheckpointReader file(find_checkpoint(options.path));
  const std::vector<LayerAgreement> layers =
      verify_checkpoint(file, options.device, options.threads);
  bool agrees = true, equal = true;
  fmt::print("{}\n  layer       rows with equal bits   largest error of lse    allowed there\n",
             file.path());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerAgreement& a = layers[i];
    fmt::print("  {:5} {:>12} of {:<12} {:>18.3g} {:>16.3g}{}\n", i, a.equal, a.rows,
               a.largest_error, a.largest_allowed, a.agrees ? "" : "  DIFFERS");
    agrees = agrees && a.agrees;
    equal = equal && a.equal == a.rows;
  }
  fmt::print("{}\n", equal    ? "the same bits: this build and device compute the saved attention"
                     : agrees ? "the same attention to rounding (another build or device saved it)"
                              : "not the same attention: more than rounding differs");
  if (!agrees) throw ExitStatus{1};
}

}  // namespace

void add_checkpoint_commands(CLI::App& app) {
  CLI::App* group = app.add_subcommand("checkpoint", "Look into a checkpoint, or replay it.");
  group->require_subcommand(1);
  auto options = std::make_shared<CheckpointCommand>();
  auto add_path = [&](CLI::App* command) {
    command
        ->add_option("checkpoint", options->path,
                     "a checkpoint, or a run's directory (its newest one)")
        ->required();
  };
  CLI::App* show =
      group->add_subcommand("inspect", "Check every checksum and print step, config and arrays.");
  add_path(show);
  show->callback([options] { inspect(*options); });
  CLI::App* both = group->add_subcommand(
      "compare",
      "Compare every array of two checkpoints bit by bit; exit status 1 if any differs.");
  add_path(both);
  both->add_option("other", options->other, "another checkpoint or run")->required();
  both->callback([options] { compare(*options); });
  CLI::App* replay = group->add_subcommand(
      "verify",
      "Replay the saved batch with the saved weights and compare each layer's row constants "
      "(m, l): equal bits on the same build and device, within rounding elsewhere. Exit status 1 "
      "if not.");
  add_path(replay);
  replay->add_option("--device", options->device, "auto, cpu, cuda")->capture_default_str();
  replay->add_option("--threads", options->threads, "CPU threads; 0: all allowed cores")
      ->check(CLI::Range(0, 4096));
  replay->callback([options] { verify(*options); });
}

}  // namespace tilefold
