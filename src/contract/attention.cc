#include "contract/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tilefold {
namespace {

constexpr std::array<std::string_view, 5> kStrategyNames = {"auto", "naive", "tiled", "split",
                                                            "decode"};

AttentionProblem problem_of(const ConstTensor& q, const ConstTensor& k,
                            const AttentionOptions& options, const PackedDocuments& documents) {
  AttentionProblem p;
  p.batch = q.shape[0];
  p.seq_q = p.max_seq_q = q.shape[1];
  p.heads = q.shape[2];
  p.d = q.shape[3];
  p.seq_k = p.max_seq_k = k.shape[1];
  p.kv_heads = k.shape[2];
  p.dtype = q.dtype;
  p.options = options;
  if (documents.cu_seqlens_q) {
    p.documents = documents.cu_seqlens_q.shape[0] - 1;
    p.max_seq_q = documents.max_seq_q;
    p.max_seq_k = documents.max_seq_k;
  }
  return p;
}

// sum over y < x of y clamped to [0, top].
double clamped_sum(double x, double top) {
  const double inside = std::clamp(x, 0.0, top);
  return inside * (inside - 1) / 2 + std::max(0.0, x - top) * top;
}

// Pairs of one head of one document: sum over rows of (end - begin) of visible_keys(), each a ramp
// clamped to [0, seq_k].
double pairs_of_head(const AttentionOptions& options, double seq_q, double seq_k) {
  const auto ramp = [&](double first) {
    return clamped_sum(first + seq_q, seq_k) - clamped_sum(first, seq_k);
  };
  const double off = seq_k - seq_q;
  const double left = static_cast<double>(options.window_left);
  const double right = static_cast<double>(effective_window_right(options));
  const double ends = right < 0 ? seq_q * seq_k : ramp(off + right + 1);
  const double begins = left < 0 ? 0 : ramp(off - left);
  return ends - begins;
}

}  // namespace

std::string_view name_of(AttentionStrategy strategy) {
  return kStrategyNames[static_cast<std::size_t>(strategy)];
}

AttentionStrategy parse_attention_strategy(std::string_view name) {
  for (std::size_t i = 0; i < kStrategyNames.size(); ++i)
    if (kStrategyNames[i] == name) return static_cast<AttentionStrategy>(i);
  throw UsageError(str("attention strategy '", name,
                       "' is unknown; allowed: auto, naive, tiled, split, decode"));
}

AttentionProblem problem_of(const AttentionForward& args) {
  return problem_of(args.q, args.k, args.options, args.documents);
}

AttentionProblem problem_of(const AttentionBackward& args) {
  AttentionProblem p = problem_of(args.q, args.k, args.options, args.documents);
  p.backward = true;
  return p;
}

double effective_scale(const AttentionOptions& options, std::int64_t d) {
  return options.scale ? static_cast<double>(*options.scale)
                       : 1 / std::sqrt(static_cast<double>(d));
}

double visible_pairs(const AttentionProblem& p) {
  return static_cast<double>(p.batch) * static_cast<double>(p.heads) *
         pairs_of_head(p.options, static_cast<double>(p.seq_q), static_cast<double>(p.seq_k));
}

Cost attention_cost(const AttentionProblem& p, AttentionStrategy strategy) {
  const double documents = static_cast<double>(std::max<std::int64_t>(p.documents, 1));
  const double heads = static_cast<double>(p.batch) * static_cast<double>(p.heads);
  const double kv_heads = static_cast<double>(p.batch) * static_cast<double>(p.kv_heads);
  const double seq_q = static_cast<double>(p.seq_q), seq_k = static_cast<double>(p.seq_k);
  const double d = static_cast<double>(p.d), size = static_cast<double>(size_of(p.dtype));
  const double state = static_cast<double>(size_of(sum_dtype(p.dtype)));

  const double pairs =
      heads * documents * pairs_of_head(p.options, seq_q / documents, seq_k / documents);
  const double query_side = heads * seq_q * d * size;   // q; o, do, dq alike
  const double key_side = kv_heads * seq_k * d * size;  // k; v, dk, dv alike
  const double constants = 2 * heads * seq_q * state;   // m, l
  Cost cost;
  cost.flops = (p.backward ? 10 : 4) * d * pairs;
  cost.bytes = p.backward ? 4 * query_side + 4 * key_side + constants
                          : 2 * query_side + 2 * key_side + constants;
  if (strategy == AttentionStrategy::naive)
    cost.bytes += (p.backward ? 5 : 4) * heads * seq_q * (seq_k / documents) * size;
  return cost;
}

}  // namespace tilefold
