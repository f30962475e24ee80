#include "kernels/attention/select_cuda.h"

#include <array>
#include <sstream>

#include "base/error.h"
#include "kernels/attention/hopper.h"
#include "kernels/attention/hopper_tiles.h"
#include "kernels/attention/plain.h"

namespace tilefold {
namespace {

using attention::BackwardTiles;
using attention::ForwardTiles;

struct Row {
  const char* kernel;
  bool backward;
  std::int64_t width;  // up to which d
  std::int64_t tile_q, tile_k;
  const char* reason;
};

// Registers and shared memory: hopper_tiles.h; measurements: README.md.
constexpr std::array kHopper = {
    Row{"hopper", false, 64, 64 * ForwardTiles<64>::kGroups, ForwardTiles<64>::kKeys,
        "three warpgroups keep scores, p and O (128 registers a thread) of 192 rows"},
    Row{"hopper", false, 128, 64 * ForwardTiles<128>::kGroups, ForwardTiles<128>::kKeys,
        "two warpgroups keep scores, p and O (160 registers a thread) of 128 rows"},
    Row{"hopper", false, 256, 64 * ForwardTiles<256>::kGroups, ForwardTiles<256>::kKeys,
        "O alone takes 128 registers a thread; 80 keys fill the shared memory"},
    Row{"hopper", true, 64, BackwardTiles<64>::kRows, BackwardTiles<64>::kKeys,
        "dK and dV stay in registers; dQ's parts are added in a fixed order"},
    Row{"hopper", true, 128, BackwardTiles<128>::kRows, BackwardTiles<128>::kKeys,
        "dK and dV stay in registers; dQ's parts are added in a fixed order"},
};
constexpr Row kPlain = {
    "plain", false, 256, 1, 32, "one warp a row, no tensor cores: what the rows above do not take"};

const Row* hopper_row(const AttentionProblem& x, const DeviceInfo& device) {
  if (!attention::hopper_refusal(x, device.compute_capability).empty()) return nullptr;
  for (const Row& row : kHopper)
    if (row.backward == x.backward && x.d <= row.width) return &row;
  return nullptr;
}

void require_strategy(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionStrategy asked = x.options.strategy;
  if (asked != AttentionStrategy::automatic && asked != AttentionStrategy::tiled)
    throw UsageError(str("attention: strategy ", name_of(asked), " is not there on ", device.name,
                         "; allowed: auto, tiled"));
  const char* refusal = attention::plain_refusal(x);
  require(*refusal == 0, "attention on ", device.name, ": ", refusal);
}

void print(std::ostringstream& out, const Row& row, bool taken) {
  out << (taken ? "* " : "  ") << row.kernel << std::string(8 - std::string(row.kernel).size(), ' ')
      << (&row == &kPlain ? "both"
          : row.backward  ? "backward"
                          : "forward")
      << ", d to " << row.width << ", " << row.tile_q << " x " << row.tile_k << "\n            "
      << row.reason << "\n";
}

}  // namespace

AttentionChoice select_cuda(const AttentionProblem& x, const DeviceInfo& device) {
  require_strategy(x, device);
  const Row* row = hopper_row(x, device);
  AttentionChoice choice;
  choice.strategy = AttentionStrategy::tiled;
  choice.workspace_bytes = row ? attention::hopper_workspace(x) : attention::plain_workspace(x);
  if (!row) row = &kPlain;
  choice.tile_q = row->tile_q;
  choice.tile_k = row->tile_k;
  choice.reason = row->reason;
  return choice;
}

std::string explain_cuda(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionChoice choice = select_cuda(x, device);
  const Row* taken = hopper_row(x, device);
  std::ostringstream out;
  out << "attention on " << device.name << ": the row that is taken (*), tiles in queries x keys\n";
  for (const Row& row : kHopper) print(out, row, &row == taken);
  print(out, kPlain, taken == nullptr);
  if (taken == nullptr)
    out << "not hopper: " << attention::hopper_refusal(x, device.compute_capability) << "\n";
  out << "pick: " << name_of(choice.strategy) << ", tiles " << choice.tile_q << " x "
      << choice.tile_k << ", workspace " << choice.workspace_bytes << " bytes\n";
  return out.str();
}

}  // namespace tilefold
