#include "kernels/attention/select_cuda.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/error.h"
#include "base/tensor.h"
#include "kernels/attention/decode_tiles.h"
#include "kernels/attention/hopper.h"
#include "kernels/attention/hopper_tiles.h"
#include "kernels/attention/naive.h"
#include "kernels/attention/naive_layout.h"
#include "kernels/attention/plain.h"
#include "kernels/attention/portable.h"
#include "kernels/attention/tiled_tiles.h"

namespace tilefold {
namespace {

using enum AttentionStrategy;
using attention::BackwardTiles;
using attention::ForwardTiles;

// ---- How the key axis is cut. README.md has the sweeps.

// Decode: one wave of the blocks that a multiprocessor holds (3 at d 64, 2 at d 128, 16 bits). GB/s
// with 1, 2, 3, 4, 8 blocks a multiprocessor: 8 heads of d 128, 1M keys 3163, 4555, 4453, 4402,
// 4217; 32k keys 2530, 3147, 2497, 2080, 1281; 12 heads of d 64, 32k keys (1.5, 3, 6): 2403, 2917,
// 2304.
constexpr std::int64_t decode_blocks(std::int64_t row_bytes) { return row_bytes <= 128 ? 3 : 2; }
constexpr std::int64_t kDecodeLeastKeys = 64;  // of a part: over 1k keys 326 GB/s, with 128 259
// Query rows of a group that decode takes by itself: one operand.
constexpr std::int64_t kDecodeMostRows = attention::kDecodeRows;
// Split: blocks a multiprocessor, and the least keys of a part. d 128, 4 heads, microseconds in 1,
// 2, 4, 8 parts: n 512 25.9, 19.8, 15.7, 17.4; n 1024 44.5, 31.2, 25.4, 33.3; n
// 2048 83.1, 64.0, 71.7; n 4096 200, 216.
constexpr std::int64_t kSplitBlocks = 2, kSplitLeastKeys = 128;
// The Hopper kernels take 17 and 29 microseconds at n 1024 and 2048: parts must be many to win.
constexpr std::int64_t kSplitBesideHopper = 8;

std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }
std::int64_t sequences(const AttentionProblem& x) {
  return x.documents > 0 ? x.documents : x.batch;
}
std::int64_t row_bytes(const AttentionProblem& x) {
  return attention::padded_width(x.d) * size_of(x.dtype);
}
std::int64_t group(const AttentionProblem& x) { return x.heads / x.kv_heads; }
std::int64_t query_rows(const AttentionProblem& x) { return product({x.batch, x.heads, x.seq_q}); }

// Blocks of one part. Documents are counted by the rows of the whole sequence.
std::int64_t decode_units(const AttentionProblem& x) {
  return product({sequences(x), x.kv_heads,
                  ceil_div(product({x.max_seq_q, group(x)}), attention::kDecodeRows)});
}
std::int64_t split_units(const AttentionProblem& x) {
  return product({x.batch, x.heads, ceil_div(x.seq_q, attention::kTileRows)});
}

std::int64_t parts_of(std::int64_t blocks, std::int64_t units, std::int64_t seq_k,
                      std::int64_t least_keys) {
  const std::int64_t most = std::max<std::int64_t>(1, seq_k / least_keys);
  return std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(units, 1), 1, most);
}
std::int64_t decode_parts(const AttentionProblem& x, const DeviceInfo& device) {
  return parts_of(decode_blocks(row_bytes(x)) * device.processors, decode_units(x), x.max_seq_k,
                  kDecodeLeastKeys);
}
std::int64_t split_parts(const AttentionProblem& x, const DeviceInfo& device) {
  return parts_of(kSplitBlocks * device.processors, split_units(x), x.max_seq_k, kSplitLeastKeys);
}

// ---- The table: the first row that fits is taken.

struct Row {
  AttentionStrategy strategy;
  AttentionKernel kernel;
  const char* name;
  bool backward;
  std::int64_t width;  // up to which d
  std::int64_t tile_q, tile_k;
  const char* when;
  const char* reason;
};

constexpr std::int64_t kWidest = 256;

// Registers and shared memory: hopper_tiles.h, tiled_tiles.h, decode_tiles.h; measurements:
// README.md.
constexpr Row kDecode = {
    decode,
    AttentionKernel::portable,
    "decode",
    false,
    kWidest,
    attention::kDecodeRows,
    64,
    "up to 16 rows of queries x heads of a group",
    "one operand of 16 rows holds the heads of a group: each byte of K and V is read once"};
constexpr Row kSplit = {
    split,
    AttentionKernel::portable,
    "split",
    false,
    kWidest,
    attention::kTileRows,
    64,
    "2 parts or more for two blocks a multiprocessor; 8 beside the Hopper rows",
    "too few query tiles for the multiprocessors: the keys are cut too, parts put together after"};
constexpr std::array kHopper = {
    Row{tiled, AttentionKernel::hopper, "hopper", false, 64, 64 * ForwardTiles<64>::kGroups,
        ForwardTiles<64>::kKeys, "compute capability 9.0, 16 bits",
        "three warpgroups keep scores, p and O (128 registers a thread) of 192 rows"},
    Row{tiled, AttentionKernel::hopper, "hopper", false, 128, 64 * ForwardTiles<128>::kGroups,
        ForwardTiles<128>::kKeys, "compute capability 9.0, 16 bits",
        "two warpgroups keep scores, p and O (160 registers a thread) of 128 rows"},
    Row{tiled, AttentionKernel::hopper, "hopper", false, 256, 64 * ForwardTiles<256>::kGroups,
        ForwardTiles<256>::kKeys, "compute capability 9.0, 16 bits",
        "O alone takes 128 registers a thread; 64 keys leave room for O on its way out"},
    Row{tiled, AttentionKernel::hopper, "hopper", true, 64, BackwardTiles<64>::kRows,
        BackwardTiles<64>::kKeys, "compute capability 9.0, 16 bits",
        "dK and dV stay in registers; dQ's parts are added in a fixed order"},
    Row{tiled, AttentionKernel::hopper, "hopper", true, 128, BackwardTiles<128>::kRows,
        BackwardTiles<128>::kKeys, "compute capability 9.0, 16 bits",
        "dK and dV stay in registers; dQ's parts are added in a fixed order"},
    Row{tiled, AttentionKernel::hopper, "hopper", true, 256, BackwardTiles<256>::kRows,
        BackwardTiles<256>::kKeys, "compute capability 9.0, 16 bits",
        "dK and dV of 64 keys fill the registers; dQ in a kernel of its own, 128 x 64"},
};
constexpr std::array kPortable = {
    Row{tiled, AttentionKernel::portable, "tiled", false, kWidest, 128, 64,
        "compute capability 8.0 and above",
        "four warps of 32 rows, of 16 from d 136 on; 96 KiB at most at 16 bits; dropout, any "
        "strides"},
    Row{tiled, AttentionKernel::portable, "tiled", true, kWidest, attention::kTileRows, 64,
        "compute capability 8.0 and above",
        "two kernels without sums between blocks: seven products, the same bits in any order"},
};
constexpr std::array kPlain = {
    Row{tiled, AttentionKernel::plain, "plain", false, kWidest, 1, 32, "otherwise",
        "one warp a row, no tensor cores, hardly any shared memory"},
    Row{tiled, AttentionKernel::plain, "plain", true, kWidest, 1, 32, "otherwise",
        "one warp a row, no tensor cores, hardly any shared memory"},
};
constexpr Row kShort = {
    naive,
    AttentionKernel::naive,
    "naive",
    false,
    attention::kFusedWidth,
    attention::kNaiveTile,
    attention::kNaiveTile,
    "up to 64 keys, 16 bits",
    "one tile, the plain softmax: 88, 48, 31 us for 173, 90, 49 at n 16, 32, 64 (8,192 tokens, 16 "
    "heads of d 64, causal)"};
constexpr std::array kNaive = {
    Row{naive, AttentionKernel::naive, "naive", false, kWidest, attention::kTileRows,
        attention::kTileRows, "only where asked for",
        "scores go to device memory and back twice: 8 bytes a pair at 16 bits; one kernel up to "
        "256 keys"},
    Row{naive, AttentionKernel::naive, "naive", true, kWidest, attention::kTileRows,
        attention::kTileRows, "only where asked for", "P and dS go to device memory and back"},
};

bool is_short(const AttentionProblem& x, const DeviceInfo& device) {
  return attention::naive_fuses(x) && x.max_seq_k <= attention::kNaiveTile &&
         attention::naive_refusal(x, device).empty();
}

const Row& tiled_row(const AttentionProblem& x, const DeviceInfo& device) {
  if (attention::hopper_refusal(x, device.compute_capability).empty())
    for (const Row& row : kHopper)
      if (row.backward == x.backward && x.d <= row.width) return row;
  const std::size_t pass = x.backward ? 1 : 0;
  return attention::portable_refusal(x, device).empty() ? kPortable[pass] : kPlain[pass];
}

bool decodes(const AttentionProblem& x) {
  return !x.backward && x.max_seq_q * group(x) <= kDecodeMostRows;
}
bool splits(const AttentionProblem& x, const DeviceInfo& device) {
  const bool hopper = attention::hopper_refusal(x, device.compute_capability).empty();
  return !x.backward && split_parts(x, device) >= (hopper ? kSplitBesideHopper : 2);
}

const Row& row_of(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionStrategy asked = x.options.strategy;
  if (asked == naive) return kNaive[x.backward ? 1 : 0];
  if (asked == automatic && is_short(x, device)) return kShort;
  if (attention::portable_refusal(x, device).empty() && !x.backward) {
    if (asked == decode || (asked == automatic && decodes(x))) return kDecode;
    if (asked == split || (asked == automatic && splits(x, device))) return kSplit;
  }
  return tiled_row(x, device);
}

void require_runnable(const AttentionProblem& x, const DeviceInfo& device) {
  const std::string refusal = attention::plain_refusal(x);
  if (!refusal.empty()) throw UsageError(str("attention on ", device.name, ": ", refusal));
  const AttentionStrategy asked = x.options.strategy;
  std::string why;
  if (asked == naive) why = attention::naive_refusal(x, device);
  if (!x.backward && (asked == split || asked == decode))
    why = attention::portable_refusal(x, device);
  if (!why.empty())
    throw UsageError(str("attention: strategy ", name_of(asked), " is not there on ", device.name,
                         ": ", why, "; allowed: auto, tiled"));
}

// Rows of partial results, each counted once a part, of the largest problem that is in no size
// larger than x and that the table cuts: a plan for the largest shape holds what smaller ones need.
std::int64_t most_partial_rows(const AttentionProblem& x, const DeviceInfo& device) {
  const std::int64_t blocks = std::max(decode_blocks(row_bytes(x)) * attention::kDecodeRows,
                                       kSplitBlocks * attention::kTileRows) *
                              device.processors;
  const std::int64_t parts =
      std::max<std::int64_t>(1, x.max_seq_k / std::min(kDecodeLeastKeys, kSplitLeastKeys));
  return std::min(blocks, product({query_rows(x), parts}));
}

std::int64_t workspace_of(const AttentionProblem& x, const DeviceInfo& device,
                          const AttentionChoice& choice) {
  std::int64_t bytes = choice.kernel == AttentionKernel::naive    ? attention::naive_workspace(x)
                       : choice.kernel == AttentionKernel::hopper ? attention::hopper_workspace(x)
                       : choice.kernel == AttentionKernel::plain
                           ? attention::plain_workspace(x)
                           : attention::portable_workspace(x, choice.splits);
  const AttentionStrategy asked = x.options.strategy;
  if (!x.backward && asked != tiled && asked != naive &&
      attention::portable_refusal(x, device).empty())
    bytes = std::max(bytes, attention::partials_bytes(most_partial_rows(x, device), x.d));
  return bytes;
}

void print(std::ostringstream& out, const Row& row, bool taken) {
  out << (taken ? "* " : "  ") << row.name << std::string(8 - std::string(row.name).size(), ' ')
      << (row.backward ? "backward" : "forward ") << ", d to " << row.width << ", " << row.tile_q
      << " x " << row.tile_k << ", " << row.when << "\n            " << row.reason << "\n";
}

// Tiles of the portable tiled kernels, which depend on the width and type.
void set_portable_tiles(AttentionChoice& choice, const AttentionProblem& x) {
  const auto bytes = static_cast<int>(row_bytes(x)), size = static_cast<int>(size_of(x.dtype));
  if (x.backward) {
    choice.tile_q = attention::backward_resident(bytes, size);
    choice.tile_k = attention::backward_rows(bytes);
  } else {
    const int rows = attention::forward_rows(bytes, size, choice.strategy == split);
    choice.tile_q = rows;
    choice.tile_k = attention::forward_keys(bytes, rows);
  }
}

}  // namespace

AttentionChoice select_cuda(const AttentionProblem& x, const DeviceInfo& device) {
  require_runnable(x, device);
  const Row& row = row_of(x, device);
  AttentionChoice choice;
  choice.strategy = row.strategy;
  choice.kernel = row.kernel;
  choice.tile_q = row.tile_q;
  choice.tile_k = row.tile_k;
  choice.reason = row.reason;
  if (row.kernel == AttentionKernel::portable && row.strategy != decode)
    set_portable_tiles(choice, x);
  if (row.strategy == decode) choice.splits = decode_parts(x, device);
  if (row.strategy == split) choice.splits = split_parts(x, device);
  choice.workspace_bytes = workspace_of(x, device, choice);
  return choice;
}

std::string explain_cuda(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionChoice choice = select_cuda(x, device);
  const Row& taken = row_of(x, device);
  std::ostringstream out;
  out << "attention on " << device.name
      << ": the first row that fits (*), tiles in queries x keys\n";
  for (const Row* row : {&kShort, &kDecode, &kSplit}) print(out, *row, row == &taken);
  for (const Row& row : kHopper) print(out, row, &row == &taken);
  for (const Row& row : kPortable) print(out, row, &row == &taken);
  for (const Row& row : kPlain) print(out, row, &row == &taken);
  for (const Row& row : kNaive) print(out, row, &row == &taken);
  const std::string refusal = attention::hopper_refusal(x, device.compute_capability);
  if (!refusal.empty()) out << "not hopper: " << refusal << "\n";
  out << "pick: " << name_of(choice.strategy) << ", tiles " << choice.tile_q << " x "
      << choice.tile_k;
  if (choice.splits > 1) out << ", key axis in " << choice.splits << " parts";
  out << ", workspace " << choice.workspace_bytes << " bytes\n";
  const std::int64_t width = attention::padded_width(x.d);
  if (!x.backward && choice.tile_q > 1)
    out << "a block keeps O in registers: " << choice.tile_q << " x " << width << " float32, "
        << choice.tile_q * width * 4 / 1024 << " KiB\n";
  return out.str();
}

}  // namespace tilefold
