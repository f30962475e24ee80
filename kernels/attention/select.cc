#include "kernels/attention/select.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "kernels/attention/cpu_scratch.h"
#include "kernels/attention/select_cuda.h"

namespace tilefold {
namespace {

using enum AttentionStrategy;

// One line of a table: the first that fits is taken.
struct Row {
  AttentionStrategy strategy;
  const char* when;
  bool (*fits)(const AttentionProblem&);
  std::int64_t tile_q, tile_k;
  const char* reason;
};

// ---- CPU
// -----------------------------------------------------------------------------------------

// Crossovers measured on two cores of a Sapphire Rapids Xeon (AVX-512, 2 MiB L2 a core), float32;
// src/cpu/attention/README.md has the runs.

// Pieces of work that a problem should fall into, so that threads are busy. Not the number of
// threads of this machine: bits must not depend on it.
constexpr std::int64_t kPieces = 16;
// Queries over 4096 keys, 8 heads, d 64: 1: decode 1.7 ms, tiled 3.3; 4: 1.38, 1.57; 8: 4.8, 4.3.
constexpr std::int64_t kDecodeQueries = 4;
constexpr std::int64_t kLeastTiles =
    2;  // key tiles of a part: fewer, and putting parts together shows
constexpr std::int64_t kLongBackward = 2048;

std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// Blocks of query rows over batch and heads. Documents are cut by rows of the whole sequence.
std::int64_t query_blocks(const AttentionProblem& x, std::int64_t tile_q) {
  return product({x.batch, x.heads, ceil_div(x.seq_q, tile_q)});
}

// Sequences over batch or documents, and kv heads: what decode deals out before it cuts the keys.
std::int64_t decode_units(const AttentionProblem& x) {
  return product({x.batch, x.kv_heads, std::max<std::int64_t>(x.documents, 1)});
}

// Parts that `pieces` of work are cut into along the keys.
std::int64_t parts(std::int64_t pieces, std::int64_t seq_k, std::int64_t tile_k) {
  const std::int64_t most = std::max<std::int64_t>(1, seq_k / (kLeastTiles * tile_k));
  return std::clamp<std::int64_t>(kPieces / std::max<std::int64_t>(pieces, 1), 1, most);
}

constexpr std::array kCpuForward = {
    Row{decode, "forward, up to 4 queries",
        [](const AttentionProblem& x) { return x.max_seq_q <= kDecodeQueries; }, 32, 128,
        "a panel of 32 would be mostly empty; one pass over K and V serves a whole group of heads"},
    Row{split, "forward, up to 8 blocks of 128 queries (batch and heads counted), 512 keys or more",
        [](const AttentionProblem& x) { return parts(query_blocks(x, 128), x.max_seq_k, 128) > 1; },
        128, 128,
        "too few blocks for the threads: the keys are cut too (1 block: 0.49 ms for 0.99; 8: 1.13 "
        "for 1.08 on two cores)"},
    Row{tiled, "forward, 16 blocks of 256 queries or more",
        [](const AttentionProblem& x) { return query_blocks(x, 256) >= kPieces; }, 256, 128,
        "K and V are fetched half as often as with 128 (4 to 10% faster); Q, O, K and V of a block "
        "stay in L2 (384 KiB at d 128), a panel of scores (16 KiB) in L1"},
    Row{tiled, "forward, otherwise", [](const AttentionProblem&) { return true; }, 128, 128,
        "more blocks, so that threads end together"},
};

constexpr std::array kCpuBackward = {
    Row{tiled, "backward, 2048 queries or more",
        [](const AttentionProblem& x) { return x.max_seq_q >= kLongBackward; }, 256, 64,
        "P and dS of a tile (64 KiB each) stay in L2; K and V are fetched half as often (5% "
        "faster)"},
    Row{tiled, "backward, otherwise", [](const AttentionProblem&) { return true; }, 128, 64,
        "less of the diagonal's blocks is idle (5% faster at 1024, causal)"},
};

std::span<const Row> cpu_table(const AttentionProblem& x) {
  if (x.backward) return kCpuBackward;
  return kCpuForward;
}

AttentionChoice cpu_choice(const AttentionProblem& x, const Row& row) {
  AttentionChoice choice;
  choice.strategy = row.strategy;
  choice.tile_q = row.tile_q;
  choice.tile_k = row.tile_k;
  choice.reason = row.reason;
  if (row.strategy == split)
    choice.splits = parts(query_blocks(x, row.tile_q), x.max_seq_k, row.tile_k);
  if (row.strategy == decode) choice.splits = parts(decode_units(x), x.max_seq_k, row.tile_k);
  return choice;
}

// Rows of partial results of the largest problem that is in no size larger than x: a plan for the
// largest shape holds what smaller ones need, which may be cut into parts though the largest is
// not.
std::int64_t most_partial_rows(const AttentionProblem& x, const Row& row) {
  const std::int64_t most = product({x.batch, x.heads, x.seq_q, parts(1, x.max_seq_k, row.tile_k)});
  if (row.strategy == split)
    return std::min(most, std::max(kPieces, query_blocks(x, row.tile_q)) * row.tile_q);
  const bool picked = x.options.strategy == automatic;  // then for few queries only
  const std::int64_t queries = picked ? std::min(x.max_seq_q, kDecodeQueries) : x.max_seq_q;
  return std::min(most,
                  product({std::max(kPieces, decode_units(x)), x.heads / x.kv_heads, queries}));
}

std::int64_t cpu_workspace(const AttentionProblem& x, const AttentionChoice& choice, int workers) {
  const std::int64_t real = x.dtype == DType::f64 ? 8 : 4;
  const bool dropout = x.options.dropout.p > 0;
  if (choice.strategy == naive) return product({workers, cpu_scratch::naive_bytes(x)});
  if (x.backward)
    return real *
           (workers * cpu_scratch::Backward(choice.tile_q, choice.tile_k, x.d, dropout).total +
            cpu_scratch::BackwardSums(x, choice.tile_k, workers, real).total);

  std::int64_t worker = 0, partials = 0;
  for (const Row& row : kCpuForward) {
    if (x.options.strategy != automatic && row.strategy != choice.strategy) continue;
    const std::int64_t of_row =
        row.strategy == decode ? cpu_scratch::Decode(row.tile_k, x.d, dropout).total
                               : cpu_scratch::Forward(row.tile_q, row.tile_k, x.d, dropout).total;
    worker = std::max(worker, of_row);
    if (row.strategy != tiled)
      partials = std::max(partials, cpu_scratch::Partials::size(most_partial_rows(x, row), x.d));
  }
  if (choice.strategy != tiled)
    partials = std::max(partials, cpu_scratch::Partials(x, choice.splits).total);
  return real * (workers * worker + partials);
}

constexpr Row kCpuNaive = {
    naive,   "only where asked for",
    nullptr, 0,
    0,       "scores go to memory: from 16 keys on tiled is faster (16: 2 times, 256: 15 times)"};

const Row& cpu_row(const AttentionProblem& x) {
  AttentionStrategy asked = x.options.strategy;
  if (asked == naive) return kCpuNaive;
  if (x.backward) asked = tiled;  // of every other strategy
  const Row* last = nullptr;
  for (const Row& row : cpu_table(x)) {
    if (asked != automatic && row.strategy != asked) continue;
    if (row.fits(x)) return row;
    last = &row;
  }
  return *last;
}

AttentionChoice select_cpu(const AttentionProblem& x, const DeviceInfo& device) {
  AttentionChoice choice = cpu_choice(x, cpu_row(x));
  choice.workspace_bytes = cpu_workspace(x, choice, device.processors);
  return choice;
}

void print_row(std::ostringstream& out, const Row& row, bool picked) {
  out << (picked ? "* " : "  ") << name_of(row.strategy)
      << std::string(8 - name_of(row.strategy).size(), ' ');
  if (row.tile_q > 0) out << row.tile_q << " x " << row.tile_k << "  ";
  out << row.when << "\n            " << row.reason << "\n";
}

std::string explain_cpu(const AttentionProblem& x, const DeviceInfo& device) {
  const AttentionChoice choice = select_cpu(x, device);
  const Row& taken = cpu_row(x);
  std::ostringstream out;
  out << "attention on " << device.name
      << ": the first row that fits (*), tiles in queries x keys\n";
  for (const Row& row : kCpuForward) print_row(out, row, &row == &taken);
  for (const Row& row : kCpuBackward) print_row(out, row, &row == &taken);
  print_row(out, kCpuNaive, &kCpuNaive == &taken);
  out << "pick: " << name_of(choice.strategy);
  if (choice.tile_q > 0) out << ", tiles " << choice.tile_q << " x " << choice.tile_k;
  if (choice.splits > 1) out << ", key axis in " << choice.splits << " parts";
  out << ", workspace " << choice.workspace_bytes << " bytes\n";
  return out.str();
}

}  // namespace

AttentionChoice select_attention(const AttentionProblem& problem, const DeviceInfo& device) {
  return device.kind == DeviceKind::cuda ? select_cuda(problem, device)
                                         : select_cpu(problem, device);
}

std::string explain_attention(const AttentionProblem& problem, const DeviceInfo& device) {
  return device.kind == DeviceKind::cuda ? explain_cuda(problem, device)
                                         : explain_cpu(problem, device);
}

}  // namespace tilefold
