#include "kernels/attention/hopper.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/attention/hopper_backward.h"
#include "kernels/attention/hopper_forward.h"
#include "kernels/attention/hopper_split.h"
#include "kernels/attention/hopper_workspace.h"
#include "kernels/attention/tail.h"
#include "kernels/tile/check.h"
#include "kernels/tile/tensor_map.h"

namespace tilefold::attention {
namespace {

// Keys and values of this many bytes stay in the cache (50 MiB) while a section's tiles go over
// them.
constexpr std::int64_t kSectionBytes = 32 << 20;
// Forward without a mask, where no order is needed for balance: about as many tiles as run at once,
// which then read the same keys together. H200, n 512, speed over 32 MiB: d 64 1.01, d 128 1.05,
// d 256 1.15; the same within noise for longer ones.
constexpr std::int64_t kFullSectionBytes = 4 << 20;
// Forward up to so many keys and width 128 a block takes two jobs ahead, or the first tiles of a short
// job come late; longer jobs are left for blocks that are free. H200, causal, speed over one ahead:
// 1.05 and 1.08 at n 512 (d 64, 128), 1.02 at 1k, 0.98 to 0.99 from 4k on; d 256 0.94 to 0.99.
constexpr std::int64_t kAheadTo = 1024;
// Backward: the pairs whose key tiles are taken in turn. Blocks of one pair wait for each other, so
// at least so many; more share the cache worse. Where every key tile begins two steps behind the
// next (causal, width 128) the order `down` hides that wait, and was faster at 8 to 16 key tiles,
// with the last 16 pairs `up`. H200, 16,384 tokens, causal, TFLOP/s down / up, by n: 355/317 at 1k,
// 404/399 at 2k, 447/464 at 4k, 489/495 at 16k; at 512 218/237 with 64 pairs.
constexpr std::int64_t kSectionPairs = 16;
constexpr std::int64_t kDownFrom = 8, kDownTo = 16;

void require_copy(const char* name, const ConstTensor& tensor) {
  const tile::CopyCheck check = tile::can_copy(tensor);
  require(check.ok, name, " of shape ", tensor.shape.text(), ", strides ", tensor.strides.text(),
          " cannot be read by the Hopper kernels: ", check.why,
          "; copy it to a dense tensor, or choose another strategy");
}

Window window_of(const AttentionOptions& options) {
  const std::int64_t right = effective_window_right(options);
  const std::int64_t left = options.window_left;
  return {left < 0 ? kUnlimited : std::min(left, kUnlimited),
          right < 0 ? kUnlimited : std::min(right, kUnlimited)};
}

Documents documents_of(const PackedDocuments& packed) {
  if (!packed.cu_seqlens_q) return {};
  return {.q = packed.cu_seqlens_q.data,
          .k = packed.cu_seqlens_k.data,
          .wide_q = packed.cu_seqlens_q.dtype == DType::i64,
          .wide_k = packed.cu_seqlens_k.dtype == DType::i64,
          .count = static_cast<int>(packed.cu_seqlens_q.shape[0] - 1)};
}

std::int64_t tiles(std::int64_t rows, std::int64_t tile) { return (rows + tile - 1) / tile; }

// Blocks count jobs in 32 bits, and a little beyond the last one.
void require_countable(std::int64_t pairs, std::int64_t tiles) {
  require(
      pairs * tiles < std::int64_t{1} << 31, "attention over ", pairs,
      " (batch or document, head) pairs of up to ", tiles,
      " tiles; allowed for the Hopper kernels: below 2^31 tiles in all; take fewer documents or "
      "heads at a time, or choose another strategy");
}

// Boxes as the kernel of a padded width takes them.
struct ForwardRow {
  std::int64_t rows;  // query rows a block
  int keys;
};
ForwardRow forward_row(int width) {
  if (width == 64) return {64 * ForwardTiles<64>::kGroups, ForwardTiles<64>::kKeys};
  if (width == 128) return {64 * ForwardTiles<128>::kGroups, ForwardTiles<128>::kKeys};
  return {64 * ForwardTiles<256>::kGroups, ForwardTiles<256>::kKeys};
}

using LaunchForward = void (*)(const ForwardParams&, int, CUstream_st*);
template <class Element>
LaunchForward forward_of(int width) {
  if (width == 64) return launch_hopper_forward<Element, 64>;
  if (width == 128) return launch_hopper_forward<Element, 128>;
  return launch_hopper_forward<Element, 256>;
}

using LaunchSplit = void (*)(const SplitParams&, int, CUstream_st*);
template <class Element>
LaunchSplit split_of(bool narrow) {
  return narrow ? launch_hopper_split<Element, 64> : launch_hopper_split<Element, 128>;
}

using LaunchBackward = void (*)(const BackwardParams&, int, CUstream_st*);
template <class Element>
LaunchBackward backward_of(int width) {
  if (width == 64) return launch_hopper_backward<Element, 64>;
  if (width == 128) return launch_hopper_backward<Element, 128>;
  return launch_hopper_wide_backward<Element>;
}

QueryJobs query_jobs(const AttentionProblem& problem, const AttentionOptions& options,
                     const PackedDocuments& documents, std::int64_t rows, std::uint32_t* next_job) {
  QueryJobs jobs;
  jobs.documents = documents_of(documents);
  jobs.window = window_of(options);
  jobs.heads = static_cast<int>(problem.heads);
  jobs.group = static_cast<int>(problem.heads / problem.kv_heads);
  jobs.seq_q = static_cast<int>(problem.seq_q);
  jobs.seq_k = static_cast<int>(problem.seq_k);
  jobs.tiles_q = static_cast<int>(tiles(problem.max_seq_q, rows));
  const std::int64_t pairs =
      (jobs.documents.q ? jobs.documents.count : problem.batch) * problem.heads;
  require_countable(pairs, jobs.tiles_q);
  jobs.pairs = static_cast<std::uint32_t>(pairs);
  jobs.jobs = static_cast<std::uint32_t>(pairs * jobs.tiles_q);
  const std::int64_t key_bytes = 2 * std::max<std::int64_t>(problem.max_seq_k, 1) * problem.d * 2;
  const std::int64_t section_bytes =
      jobs.window.right == kUnlimited ? kFullSectionBytes : kSectionBytes;
  jobs.section = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(section_bytes / key_bytes * jobs.group, jobs.group,
                               std::max<std::int64_t>(pairs, jobs.group)));
  jobs.places = 2;
  jobs.next_job = next_job;
  return jobs;
}

BackwardParams::Strides strides_of(const ConstTensor& t) {
  return {t.strides[1], t.strides[2], t.strides[0]};
}

}  // namespace

bool hopper_copies(const AttentionForward& args) {
  const ConstTensor o = args.o;
  for (const ConstTensor* x : {&args.q, &args.k, &args.v, &o})
    if (!tile::can_copy(*x).ok) return false;
  return true;
}

bool hopper_copies(const AttentionBackward& args) {
  const ConstTensor dq = args.dq, dk = args.dk, dv = args.dv;
  for (const ConstTensor* x : {&args.q, &args.k, &args.v, &args.o, &args.d_o, &dq, &dk, &dv})
    if (!tile::can_copy(*x).ok) return false;
  return true;
}

void hopper_forward(const AttentionForward& args, int processors, CUstream_st* stream) {
  const AttentionProblem problem = problem_of(args);
  require_copy("q", args.q);
  require_copy("k", args.k);
  require_copy("v", args.v);
  require_copy("o", args.o);
  if (args.documents.cu_seqlens_q) {
    clear_tail(args.o, args.documents.cu_seqlens_q, stream);
    clear_tail_constants(args.m, args.l, args.documents.cu_seqlens_q, stream);
  }
  const int width = padded_width(problem.d);
  const ForwardRow row = forward_row(width);
  ForwardParams p{};
  std::uint32_t* const next_job = reinterpret_cast<std::uint32_t*>(args.workspace.data());
  p.jobs = query_jobs(problem, args.options, args.documents, row.rows, next_job);
  const std::int64_t jobs = p.jobs.jobs;
  if (jobs == 0) return;
  if (width <= 128 && problem.max_seq_k <= kAheadTo) p.jobs.places = 3;
  p.q = tile::make_tensor_map(args.q, 64);
  p.k = tile::make_tensor_map(args.k, row.keys);
  p.v = tile::make_tensor_map(args.v, row.keys);
  p.o = tile::make_tensor_map(args.o, 64);
  p.o_data = static_cast<std::uint16_t*>(args.o.data);
  p.o_row = args.o.strides[1];
  p.o_head = args.o.strides[2];
  p.o_batch = args.o.strides[0];
  p.m = args.m.as<float>();
  p.l = args.l.as<float>();
  p.d = static_cast<int>(problem.d);
  p.scale = static_cast<float>(effective_scale(args.options, problem.d));
  p.softcap = args.options.softcap;
  // Jobs of one length need no counter.
  if (p.jobs.window.left == kUnlimited && p.jobs.window.right == kUnlimited &&
      !p.jobs.documents.q) {
    p.jobs.next_job = nullptr;
  } else {
    tile::check(cudaMemsetAsync(next_job, 0, sizeof(*next_job), stream));
  }
  const auto launch =
      problem.dtype == DType::bf16 ? forward_of<bf16>(width) : forward_of<f16>(width);
  launch(p, static_cast<int>(std::min<std::int64_t>(processors, jobs)), stream);
}

void hopper_split(const AttentionForward& args, int rows, int parts, CUstream_st* stream) {
  const AttentionProblem problem = problem_of(args);
  const std::string refusal = hopper_split_refusal(problem);
  require(refusal.empty(), "attention in parts of the keys: ", refusal);
  require(rows == 64 || rows == 128, "attention in parts of the keys: query tiles of ", rows,
          " rows; allowed: 64, 128");
  require(parts >= 1 && parts <= kSplitMost && (parts & (parts - 1)) == 0,
          "attention in parts of the keys: ", parts, " parts; allowed: 1, 2, 4, 8, 16");
  require_copy("q", args.q);
  require_copy("k", args.k);
  require_copy("v", args.v);
  require_copy("o", args.o);
  const bool narrow = padded_width(problem.d) == 64;
  const int keys = narrow ? SplitTiles<64>::kKeys : SplitTiles<128>::kKeys;
  SplitParams p{};
  p.q = tile::make_tensor_map(args.q, 64);
  p.k = tile::make_tensor_map(args.k, keys);
  p.v = tile::make_tensor_map(args.v, keys);
  p.o = static_cast<std::uint16_t*>(args.o.data);
  p.o_row = args.o.strides[1];
  p.o_head = args.o.strides[2];
  p.o_batch = args.o.strides[0];
  p.m = args.m.as<float>();
  p.l = args.l.as<float>();
  p.window = window_of(args.options);
  p.heads = static_cast<int>(problem.heads);
  p.group = static_cast<int>(problem.heads / problem.kv_heads);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_k = static_cast<int>(problem.seq_k);
  p.d = static_cast<int>(problem.d);
  p.rows = rows;
  p.tiles_q = static_cast<int>(tiles(problem.seq_q, rows));
  p.pairs = static_cast<int>(problem.batch * problem.heads);
  p.scale = static_cast<float>(effective_scale(args.options, problem.d));
  p.softcap = args.options.softcap;
  if (narrow && rows == 128 && parts == 1) {
    const auto launch = problem.dtype == DType::bf16 ? launch_hopper_split_three<bf16>
                                                     : launch_hopper_split_three<f16>;
    launch(p, stream);
    return;
  }
  const auto launch = problem.dtype == DType::bf16 ? split_of<bf16>(narrow) : split_of<f16>(narrow);
  launch(p, parts, stream);
}

void hopper_backward(const AttentionBackward& args, int processors, CUstream_st* stream) {
  const AttentionProblem problem = problem_of(args);
  require_copy("q", args.q);
  require_copy("k", args.k);
  require_copy("v", args.v);
  require_copy("o", args.o);
  require_copy("d_o", args.d_o);
  require_copy("dq", args.dq);
  require_copy("dk", args.dk);
  require_copy("dv", args.dv);
  if (args.documents.cu_seqlens_q) {
    clear_tail(args.dq, args.documents.cu_seqlens_q, stream);
    clear_tail(args.dk, args.documents.cu_seqlens_k, stream);
    clear_tail(args.dv, args.documents.cu_seqlens_k, stream);
  }
  const int width = padded_width(problem.d);
  const BackwardWorkspace work(problem);
  const auto at = [&args](std::int64_t offset) { return args.workspace.data() + offset; };
  BackwardParams p{};
  const int rows = static_cast<int>(work.rows);
  const int keys = width == 256 ? BackwardTiles<256>::kKeys : BackwardTiles<128>::kKeys;
  static_assert(BackwardTiles<64>::kKeys == BackwardTiles<128>::kKeys);
  constexpr int kResultKeys = 64;  // a warpgroup's
  p.q = tile::make_tensor_map(args.q, rows);
  p.d_o = tile::make_tensor_map(args.d_o, rows);
  p.dq_out = {tile::make_tensor_map(args.dq, rows), static_cast<std::uint16_t*>(args.dq.data),
              strides_of(args.dq)};
  p.dk_out = {tile::make_tensor_map(args.dk, kResultKeys), static_cast<std::uint16_t*>(args.dk.data),
              strides_of(args.dk)};
  p.dv_out = {tile::make_tensor_map(args.dv, kResultKeys), static_cast<std::uint16_t*>(args.dv.data),
              strides_of(args.dv)};
  p.k = tile::make_tensor_map(args.k, keys);
  p.v = tile::make_tensor_map(args.v, keys);
  p.o_data = static_cast<const std::uint16_t*>(args.o.data);
  p.d_o_data = static_cast<const std::uint16_t*>(args.d_o.data);
  p.o_at = strides_of(args.o);
  p.d_o_at = strides_of(args.d_o);
  p.m = args.m.as<float>();
  p.l = args.l.as<float>();
  p.stats = reinterpret_cast<float*>(at(work.stats));
  p.dq_sum = reinterpret_cast<float*>(at(work.dq_sum));
  p.turn = reinterpret_cast<std::uint32_t*>(at(work.turn));
  p.next_job = reinterpret_cast<std::uint32_t*>(at(work.next_job));
  p.documents = documents_of(args.documents);
  p.window = window_of(args.options);
  p.heads = static_cast<int>(problem.heads);
  p.key_heads = static_cast<int>(problem.kv_heads);
  p.group = static_cast<int>(problem.heads / problem.kv_heads);
  p.batch = static_cast<int>(problem.batch);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_k = static_cast<int>(problem.seq_k);
  p.d = static_cast<int>(problem.d);
  p.tiles_q = static_cast<int>(tiles(problem.max_seq_q, rows));
  p.tiles_k = static_cast<int>(tiles(problem.max_seq_k, keys));
  p.tiles_of_head = static_cast<std::uint32_t>(work.tiles_of_head);
  const std::int64_t sequences = p.documents.q ? p.documents.count : problem.batch;
  const std::int64_t pairs = sequences * p.key_heads;
  constexpr std::int64_t kWideRows = 128;  // of a block of the kernel for dQ at width 256
  p.queries = query_jobs(problem, args.options, args.documents, kWideRows, p.next_job + 1);
  const std::int64_t pair_bytes = problem.max_seq_q * p.group * problem.d * (2 + 2 + 4);
  require_countable(pairs, p.tiles_k);
  p.pairs = static_cast<std::uint32_t>(pairs);
  p.section = static_cast<std::uint32_t>(
      std::clamp(kSectionBytes / std::max<std::int64_t>(1, pair_bytes), kSectionPairs,
                 std::max(kSectionPairs, pairs)));  // q, d_o, dq_sum
  if (p.window.right != kUnlimited && width == 128 && p.tiles_k >= kDownFrom &&
      p.tiles_k <= kDownTo)
    p.down_pairs = static_cast<std::uint32_t>(pairs - std::min(kSectionPairs, pairs / 2));
  p.scale = static_cast<float>(effective_scale(args.options, problem.d));
  p.softcap = args.options.softcap;
  p.ordered = args.options.deterministic;
  const std::int64_t jobs =
      std::max(pairs * p.tiles_k, width == 256 ? std::int64_t{p.queries.jobs} : 0);
  const auto launch =
      problem.dtype == DType::bf16 ? backward_of<bf16>(width) : backward_of<f16>(width);
  launch(p, static_cast<int>(std::min<std::int64_t>(processors, jobs)), stream);
}

}  // namespace tilefold::attention
