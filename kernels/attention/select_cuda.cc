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
// Where the Hopper rows take the whole of the keys only (wide heads, documents).
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

bool has_hopper(const AttentionProblem& x, const DeviceInfo& device) {
  return attention::hopper_refusal(x, device.compute_capability).empty();
}
bool has_hopper_split(const AttentionProblem& x, const DeviceInfo& device) {
  return has_hopper(x, device) && attention::hopper_split_refusal(x).empty();
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

// Backward: blocks of one part of the kernel that has more of them.
std::int64_t backward_tile(const AttentionProblem& x) {
  return attention::backward_resident(static_cast<int>(row_bytes(x)),
                                      static_cast<int>(size_of(x.dtype)));
}
std::int64_t backward_units(const AttentionProblem& x) {
  return std::max(product({sequences(x), x.heads, ceil_div(x.max_seq_q, backward_tile(x))}),
                  product({sequences(x), x.kv_heads, ceil_div(x.max_seq_k, backward_tile(x))}));
}
// Least keys (or queries) of a part: 4 heads, n 256, in 2 and 4 parts: d 64 30.9, 25.6 us; d
// 128 30.1, 26.1, but n 512 in 4 and 8 33.9, 37.8.
constexpr std::int64_t kBackwardLeastKeys = 64;
std::int64_t backward_parts(const AttentionProblem& x, const DeviceInfo& device) {
  return parts_of(kSplitBlocks * device.processors, backward_units(x),
                  std::max(x.max_seq_q, x.max_seq_k),
                  row_bytes(x) <= 128 ? kBackwardLeastKeys : kSplitLeastKeys);
}

// Split on Hopper: query tiles of 64 or 128 rows, each a cluster's of 1 to 16 blocks, and whether
// that beats the rows over whole keys. One block a multiprocessor; clusters of four and more leave
// some idle, which is where one wave becomes two (c: rows x parts; d 64, 4 heads, n 512: c 64x2 7.0
// us, 64x4 11.0, 128x4 7.4). 64 rows, whose warpgroups share the keys, want three stages of keys:
// at d 128 only two tiles a warpgroup (n 2048: c 64x1 32.0, 128x2 20.4). README.md has the sweep.
struct SplitPlan {
  std::int64_t rows, parts;
  bool wins;
};
SplitPlan hopper_split_plan(const AttentionProblem& x, const DeviceInfo& device) {
  constexpr std::int64_t kKeys = attention::SplitTiles<64>::kKeys;
  static_assert(kKeys == attention::SplitTiles<128>::kKeys);
  const std::int64_t left = x.options.window_left, right = effective_window_right(x.options);
  std::int64_t tiles_k = ceil_div(x.seq_k, kKeys);  // that a query tile sees at most
  if (left >= 0 && right >= 0 && left + right < x.seq_k)
    tiles_k = std::min(tiles_k, ceil_div(left + right + 128, kKeys) + 1);
  const auto units = [&](std::int64_t rows) {
    return product({x.batch, x.heads, ceil_div(x.seq_q, rows)});
  };
  const auto parts_for = [&](std::int64_t rows) {
    std::int64_t parts = 1;
    while (2 * parts <= std::min<std::int64_t>(attention::kSplitMost, tiles_k) &&
           2 * parts * units(rows) <= (parts == 1 ? device.processors : device.processors * 3 / 4))
      parts *= 2;
    return parts;
  };
  // Under a causal mask tiles differ in length: up to two waves, the longest first.
  const bool uneven = right >= 0 && left < 0;
  const std::int64_t most = device.processors * (uneven ? 2 : 1);
  const bool narrow = x.d <= 64;
  if (units(64) <= (narrow ? most : device.processors)) {
    const std::int64_t parts = parts_for(64);
    if (narrow || tiles_k <= 4 * parts) return {64, parts, true};
  }
  std::int64_t parts = parts_for(128);
  if (uneven && parts == 1 && tiles_k > 1 && 2 * units(128) <= most) parts = 2;
  return {128, parts, units(128) <= device.processors && (narrow || parts > 1)};
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
    "2 parts or more for two blocks a multiprocessor",
    "too few query tiles for the multiprocessors: the keys are cut too, parts put together after"};
constexpr Row kHopperSplit = {
    split,
    AttentionKernel::hopper,
    "split",
    false,
    128,
    128,
    attention::SplitTiles<128>::kKeys,
    "compute capability 9.0, 16 bits, no packed documents, fewer query tiles than multiprocessors",
    "a cluster's blocks share the keys of a query tile and put their sums together in shared "
    "memory"};
constexpr Row kSplitBackward = {
    split,
    AttentionKernel::portable,
    "split",
    true,
    kWidest,
    attention::kTileRows,
    64,
    "2 parts or more for two blocks a multiprocessor; beside the Hopper rows 4, d 72 to 128, no "
    "mask",
    "too few tiles for the multiprocessors: what each goes over is cut too, sums in float32 after"};
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
  return !x.backward && split_parts(x, device) >= (has_hopper(x, device) ? kSplitBesideHopper : 2);
}
// In parts for the whole: 4 heads of d 64, causal, n 256 to 4096: 26, 28, 43, 99, 244 us for 40,
// 67, 119, 224, 427; d 128: 25, 33, 62, 154, 365 for 37, 61, 109, 205, 525. The Hopper rows take
// 15, 20, 30, 50, 92 and 19, 28, 58, 107, 151: parts win beside them only where no mask cuts their
// work and the width leaves theirs unsplit longest (d 128, full, n 512 and 1024: 33.9, 64.9
// for 40.2, 73.0). may_: whether some length of the problem is cut.
bool may_split_backward(const AttentionProblem& x, const DeviceInfo& device) {
  const bool full = x.options.window_left < 0 && effective_window_right(x.options) < 0;
  return !has_hopper(x, device) ||
         (full && x.documents == 0 && attention::padded_width(x.d) == 128);
}
bool splits_backward(const AttentionProblem& x, const DeviceInfo& device) {
  return may_split_backward(x, device) &&
         backward_parts(x, device) >= (has_hopper(x, device) ? 4 : 2);
}

const Row& row_of(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionStrategy asked = x.options.strategy;
  if (asked == naive) return kNaive[x.backward ? 1 : 0];
  if (asked == automatic && is_short(x, device)) return kShort;
  if (attention::portable_refusal(x, device).empty() && !x.backward) {
    if (asked == decode || (asked == automatic && decodes(x))) return kDecode;
    if (has_hopper_split(x, device) &&
        (asked == split || (asked == automatic && hopper_split_plan(x, device).wins)))
      return kHopperSplit;
    if (asked == split || (asked == automatic && splits(x, device))) return kSplit;
  }
  if (attention::portable_refusal(x, device).empty() && x.backward &&
      (asked == split || (asked == automatic && splits_backward(x, device))))
    return kSplitBackward;
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

// The same of gradients: rows of q, k and v.
std::int64_t most_gradient_rows(const AttentionProblem& x, const DeviceInfo& device) {
  const std::int64_t rows = query_rows(x) + 2 * product({x.batch, x.kv_heads, x.seq_k});
  const std::int64_t parts =
      std::max<std::int64_t>(1, std::max(x.max_seq_q, x.max_seq_k) / kBackwardLeastKeys);
  return std::min(3 * kSplitBlocks * device.processors * backward_tile(x), product({rows, parts}));
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
  const bool cuts = asked == split || (asked == automatic && may_split_backward(x, device));
  if (x.backward && cuts && attention::portable_refusal(x, device).empty())
    bytes =
        std::max(bytes, attention::portable_workspace(x, 1) +
                            attention::gradient_parts_bytes(most_gradient_rows(x, device), x.d));
  return bytes;
}

void print(std::ostringstream& out, const Row& row, bool taken) {
  out << (taken ? "* " : "  ") << row.name << std::string(8 - std::string(row.name).size(), ' ')
      << (row.backward ? "backward" : "forward ") << ", d to " << row.width << ", " << row.tile_q
      << " x " << row.tile_k << ", " << row.when << "\n            " << row.reason << "\n";
}

// Of the keys, inside a block, each with an O of its own: decode's warps; the two warpgroups that
// share the keys of 64 rows.
std::int64_t parts_of_block(const AttentionProblem& x, const AttentionChoice& choice) {
  if (choice.strategy == decode) return attention::decode_warps(static_cast<int>(row_bytes(x)));
  const bool cluster = choice.strategy == split && choice.kernel == AttentionKernel::hopper;
  return cluster && choice.tile_q == 64 ? 2 : 1;
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
  if (&row == &kSplit) choice.splits = split_parts(x, device);
  if (&row == &kSplitBackward) choice.splits = backward_parts(x, device);
  if (&row == &kHopperSplit) {
    const SplitPlan plan = hopper_split_plan(x, device);
    choice.tile_q = plan.rows;
    choice.splits = plan.parts;
  }
  choice.workspace_bytes = workspace_of(x, device, choice);
  return choice;
}

std::string explain_cuda(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionChoice choice = select_cuda(x, device);
  const Row& taken = row_of(x, device);
  std::ostringstream out;
  out << "attention on " << device.name
      << ": the first row that fits (*), tiles in queries x keys\n";
  for (const Row* row : {&kShort, &kDecode, &kHopperSplit, &kSplit, &kSplitBackward})
    print(out, *row, row == &taken);
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
  const std::int64_t width = attention::padded_width(x.d), parts = parts_of_block(x, choice);
  if (!x.backward && choice.tile_q > 1)
    out << "a block keeps O in registers: " << (parts > 1 ? str(parts, " parts of ") : "")
        << choice.tile_q << " x " << width << " float32, "
        << parts * choice.tile_q * width * 4 / 1024 << " KiB\n";
  return out.str();
}

}  // namespace tilefold
