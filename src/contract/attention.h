// Exact attention, forward and backward.
//
//   s[i,j] = scale * q_i . k_j            t = softcap > 0 ? softcap * tanh(s / softcap) : s
//   t[i,j] = -inf where key j is hidden from query i
//   m_i = max_j t[i,j]    l_i = sum_j exp(t[i,j] - m_i)    p[i,j] = exp(t[i,j] - m_i) / l_i
//   o_i = sum_j p[i,j] v_j                                  lse_i = m_i + ln l_i (natural)
//
//   D_i = do_i . o_i      dp[i,j] = do_i . v_j              ds = p (dp - D) (1 - (t/softcap)^2)
//   dq_i = scale sum_j ds k_j     dk_j = scale sum_i ds q_i     dv_j = sum_i p do_i
//   (dk, dv summed over the query heads of a group)
//
// Backward recomputes p = exp(t - m) / l from q, k, v, o and the row constants m, l (m is subtracted
// first; exp((t - m) - ln l) would round a larger argument); nothing of size seq_q * seq_k is kept.
// Dropout acts on p after l was taken: o_i = sum_j mask p v_j.
//
// Visible: with off = seq_k - seq_q, key j is visible to query i when
//   i + off - window_left <= j <= i + off + window_right     (a limit of -1 is no limit)
//   causal means window_right = 0 wherever it was larger or unlimited (bottom-right aligned).
// Packed documents (batch 1): document x owns query rows [cu_q[x], cu_q[x+1]) and key rows
//   [cu_k[x], cu_k[x+1]); the rule above holds inside it, nothing is visible across; rows after the
//   last offset are never read, their outputs and gradients are zero, m = -inf, l = 0.
// A row with no visible key: o = 0, m = -inf, l = 0, no gradient.
//
// Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
// "FlashAttention" (2022), "FlashAttention-2" (2023).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/tensor.h"
#include "contract/cost.h"
#include "contract/dropout.h"

namespace tilefold {

enum class AttentionStrategy : std::uint8_t { automatic, naive, tiled, split, decode };

std::string_view name_of(AttentionStrategy strategy);               // "auto", "naive", ...
AttentionStrategy parse_attention_strategy(std::string_view name);  // throws UsageError

// Which keys a query sees, and how scores become probabilities.
struct AttentionOptions {
  bool causal = false;
  std::int64_t window_left = -1;   // -1: no limit
  std::int64_t window_right = -1;  // -1: no limit
  std::optional<float> scale;      // default 1 / sqrt(d); else finite and above 0
  float softcap = 0;               // 0: none; else finite and above 0
  Dropout dropout;
  bool deterministic = true;  // false allows a faster order of the backward's sums
  AttentionStrategy strategy = AttentionStrategy::automatic;
};

// Packed documents; both empty for none. int32 or int64, start at 0, do not decrease.
struct PackedDocuments {
  ConstTensor cu_seqlens_q;    // [documents + 1]
  ConstTensor cu_seqlens_k;    // [documents + 1]
  std::int64_t max_seq_q = 0;  // longest document, so that a device need not be asked
  std::int64_t max_seq_k = 0;
};

struct AttentionForward {
  ConstTensor q;         // [batch, seq_q, heads, d]     any strides, the last 1
  ConstTensor k;         // [batch, seq_k, kv_heads, d]  heads % kv_heads == 0
  ConstTensor v;         // [batch, seq_k, kv_heads, d]
  Tensor o;              // [batch, seq_q, heads, d]
  Tensor m;              // [batch, heads, seq_q] f32 (f64 where q is f64), dense
  Tensor l;              // [batch, heads, seq_q] f32 (f64 where q is f64), dense
  Tensor probabilities;  // [batch, heads, seq_q, seq_k] of q's dtype, dense: p before dropout, 0
                         // where hidden; written for backward. Strategy naive without documents
                         // only; else empty
  AttentionOptions options;
  PackedDocuments documents;
  std::span<std::byte> workspace;  // at least attention_workspace() bytes, 64-byte aligned
};

struct AttentionBackward {
  ConstTensor q, k, v, o, m, l;  // as in forward
  ConstTensor probabilities;     // as in forward: read in place of recomputing; or empty
  ConstTensor d_o;               // [batch, seq_q, heads, d]
  Tensor dq;                     // [batch, seq_q, heads, d]     written, not added to
  Tensor dk;                     // [batch, seq_k, kv_heads, d]  written, not added to
  Tensor dv;                     // [batch, seq_k, kv_heads, d]  written, not added to
  AttentionOptions options;      // as in forward
  PackedDocuments documents;     // as in forward
  std::span<std::byte> workspace;
};

// What the choice of a strategy, the workspace and the cost depend on.
struct AttentionProblem {
  std::int64_t batch = 1, seq_q = 0, seq_k = 0, heads = 1, kv_heads = 1, d = 64;
  std::int64_t documents = 0;                 // 0: not packed
  std::int64_t max_seq_q = 0, max_seq_k = 0;  // longest document; the sequence when not packed
  DType dtype = DType::f32;
  AttentionOptions options;
  bool backward = false;
};

AttentionProblem problem_of(const AttentionForward& args);
AttentionProblem problem_of(const AttentionBackward& args);

// Right limit with causal folded in; -1 for none.
constexpr std::int64_t effective_window_right(const AttentionOptions& o) {
  return o.causal ? 0 : o.window_right;
}

// What multiplies q . k: options.scale, or 1 / sqrt(d) of the true d.
double effective_scale(const AttentionOptions& options, std::int64_t d);

// Keys [begin, end) that query i of a document of seq_q queries and seq_k keys sees; begin == end
// for none. REQUIRES: 0 <= i < seq_q.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
constexpr KeyRange visible_keys(const AttentionOptions& options, std::int64_t i, std::int64_t seq_q,
                                std::int64_t seq_k) {
  const std::int64_t diagonal = i + seq_k - seq_q, farthest = seq_q + seq_k;  // keeps sums small
  const std::int64_t left = options.window_left, right = effective_window_right(options);
  std::int64_t begin = 0, end = seq_k;
  if (left >= 0) begin = diagonal - (left < farthest ? left : farthest);
  if (right >= 0) end = diagonal + (right < farthest ? right : farthest) + 1;
  begin = begin < 0 ? 0 : begin > seq_k ? seq_k : begin;
  end = end < 0 ? 0 : end > seq_k ? seq_k : end;
  return {begin, end < begin ? begin : end};
}

// (query, key) pairs that are visible, over batch and heads, of a problem that is not packed.
double visible_pairs(const AttentionProblem& problem);

// flops: 4 d a visible pair forward, 10 d backward. bytes: q, k, v, o (and gradients) and the row
// constants once; `naive` adds passes over the scores in the storage type: four forward (p written,
// read and written by the softmax, read), five backward (p and dS written, p read once, dS twice).
// Packed documents count as equally long ones.
Cost attention_cost(const AttentionProblem& problem, AttentionStrategy strategy);

}  // namespace tilefold
