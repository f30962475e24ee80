// The attention half of a layer.
//   n = norm(x)   [q k v] = n W_qkv^T   q, k rotated (Llama)   o = attention(q, k, v)
//   branch = o W_out^T
// q, k and v stay where the fused product put them: strided views of qkv. With a cache, keys and
// values are copied behind those of earlier tokens, and attention reads all of them.
#include <algorithm>

#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {
namespace {

// Attention's view of tokens: packed documents are one batch element.
struct Layout {
  std::int64_t batch, seq;
};

Layout layout_of(const Run& run) {
  if (run.batch.cu_seqlens) return {1, run.tokens()};
  return {run.batch.samples, run.batch.seq};
}

// Heads [first, first + count) of qkv: [batch, seq, count, d].
Tensor heads_of(const Run& run, Tensor qkv, std::int64_t first, std::int64_t count) {
  const Layout at = layout_of(run);
  const std::int64_t row = run.sizes.qkv_width(), d = run.sizes.d;
  auto* data = static_cast<std::byte*>(qkv.data) + first * d * size_of(qkv.dtype);
  return Tensor(data, qkv.dtype, {at.batch, at.seq, count, d}, {at.seq * row, row, d, 1});
}

// [tokens, heads d] as [batch, seq, heads, d].
Tensor split_heads(const Run& run, Tensor rows) {
  const Layout at = layout_of(run);
  return rows.reshaped({at.batch, at.seq, run.sizes.heads, run.sizes.d});
}

struct QueryKeyValue {
  Tensor q, k, v;
};

QueryKeyValue split_qkv(const Run& run, Tensor qkv) {
  const Sizes& s = run.sizes;
  return {heads_of(run, qkv, 0, s.heads), heads_of(run, qkv, s.heads, s.kv_heads),
          heads_of(run, qkv, s.heads + s.kv_heads, s.kv_heads)};
}

// Query and key heads, which follow each other, in one call.
void rotate(const Run& run, Tensor qkv, bool inverse) {
  if (run.weights.rope == kNoTensor) return;
  Rope rope;
  rope.x = heads_of(run, qkv, 0, run.sizes.heads + run.sizes.kv_heads);
  rope.positions = run.batch.positions;
  rope.table = run.arena.tensor(run.weights.rope);
  rope.inverse = inverse;
  ops::rope(run.ctx, rope);
}

// From the residual stream to rotated queries, and keys and values in the caches, whose views take
// the place of x's.
void project_token(const Run& run, const AttentionWeights& w, const AttentionTensors& t,
                   QueryKeyValue& x) {
  x.k = run.arena.tensor(t.k_cache).sliced(0, 0, 1);
  x.v = run.arena.tensor(t.v_cache).sliced(0, 0, 1);
  normed_linear(run, w.norm, t.norm, w.qkv,
                {.epilogue = TokenEpilogue::heads,
                 .y = x.q.reshaped({1, run.sizes.heads * run.sizes.d}),
                 .place = run.batch.positions,
                 .table = run.arena.tensor(run.weights.rope),
                 .k_cache = x.k,
                 .v_cache = x.v});
}

// Puts the new keys (or values) into the cache; returns all of this batch's, old and new.
Tensor extend_cache(const Run& run, TensorId cache, Tensor fresh) {
  const Tensor all = run.arena.tensor(cache).sliced(0, 0, run.batch.samples);
  ops::copy(run.ctx, {.src = fresh, .dst = all.sliced(1, run.start, run.batch.seq)});
  return all.sliced(1, 0, run.start + run.batch.seq);
}

// The same for keys and values; where the device alone knows the place, all of the cache.
void extend_caches(const Run& run, const AttentionTensors& t, QueryKeyValue& x) {
  if (run.offsets) {
    const Tensor k = run.arena.tensor(t.k_cache).sliced(0, 0, 1);
    const Tensor v = run.arena.tensor(t.v_cache).sliced(0, 0, 1);
    ops::cache_append(
        run.ctx, {.k = x.k, .v = x.v, .places = run.batch.positions, .k_cache = k, .v_cache = v});
    x.k = k, x.v = v;
    return;
  }
  x.k = extend_cache(run, t.k_cache, x.k);
  x.v = extend_cache(run, t.v_cache, x.v);
}

AttentionOptions options_of(const Run& run, int layer, AttentionStrategy strategy) {
  AttentionOptions options = run.sizes.attention;
  options.strategy = strategy;
  options.dropout = run.dropout(attention_site(layer));
  return options;
}

PackedDocuments documents_of(const Run& run, const Tensor& k) {
  const Batch& b = run.batch;
  if (run.offsets)
    return {.cu_seqlens_q = run.offsets.sliced(0, 0, 2),
            .cu_seqlens_k = run.offsets.sliced(0, 2, 2),
            .max_seq_q = 1,
            .max_seq_k = k.shape[1]};
  return {.cu_seqlens_q = b.cu_seqlens,
          .cu_seqlens_k = b.cu_seqlens,
          .max_seq_q = b.max_document,
          .max_seq_k = b.max_document};
}

Tensor row_constants(const Run& run, TensorId id) {
  const Layout at = layout_of(run);
  return run.view(id, {at.batch, run.sizes.heads, at.seq});
}

Tensor probabilities_of(const Run& run, TensorId id) {
  if (id == kNoTensor) return {};
  return run.view(id, {run.batch.samples, run.sizes.heads, run.batch.seq, run.batch.seq});
}

std::int64_t attention_bytes(const Declaration& d, bool backward) {
  return d.most([&](std::int64_t samples) {
    std::int64_t bytes = 0;
    // A prompt may be of any length up to the cache's.
    for (std::int64_t seq = d.seq; seq >= 1; seq = d.purpose == Purpose::generate ? seq / 2 : 0)
      bytes = std::max(
          bytes, ops::attention_workspace(d.attention_problem(samples, seq, backward), d.device));
    return bytes;
  });
}

void declare_attention_backward(Declaration& d, AttentionTensors& t, const std::string& layer,
                                int backward) {
  const Sizes& s = d.sizes;
  t.d_o = d.rows(layer, "do", s.width, s.dtype, Kind::workspace, backward, backward);
  t.dqkv = d.rows(layer, "dqkv", s.qkv_width(), s.dtype, Kind::workspace, backward, backward);
  t.workspace_backward = d.workspace(
      layer,
      std::max({d.linear_bytes(s.width, s.qkv_width()), d.linear_bytes(s.width, s.width),
                attention_bytes(d, true), d.norm_backward_bytes()}),
      backward);
}

}  // namespace

void declare_attention(Declaration& d, int layer) {
  const Sizes& s = d.sizes;
  const Timeline& time = d.pass.time;
  const std::string name = layer_name(layer);
  const int now = time.attention(layer), backward = time.attention_backward(layer);
  AttentionTensors& t = d.pass.attention[static_cast<std::size_t>(layer)];

  const int branch_backward = layer > 0 ? time.mlp_backward(layer - 1) : backward;
  t.norm = declare_norm(d, name, now, backward, branch_backward);
  t.qkv = d.activation(name, "qkv", s.qkv_width(), now, backward);
  if (s.strategy == AttentionStrategy::naive && d.training() && d.documents == 0)
    t.probabilities = d.plan.scratch(name, "probabilities", {d.samples, s.heads, d.seq, d.seq},
                                     s.dtype, Kind::saved, now, backward);
  t.o = d.activation(name, "o", s.width, now, backward);
  const bool keep = d.training() || d.row_constants;
  const int last = d.training() ? backward : d.row_constants ? time.head() : now;
  for (TensorId* id : {&t.m, &t.l})
    *id = d.plan.scratch(name, id == &t.m ? "m" : "l", {d.samples, s.heads, d.seq}, s.sum_dtype,
                         keep ? Kind::saved : Kind::workspace, now, last);
  t.branch = d.rows(name, "branch", s.width, s.dtype, Kind::workspace, now, now);
  t.workspace = d.workspace(name,
                            std::max({d.linear_bytes(s.width, s.qkv_width()),
                                      d.linear_bytes(s.width, s.width), attention_bytes(d, false)}),
                            now);
  if (d.training()) declare_attention_backward(d, t, name, backward);
  d.branch = t.branch;
  d.branch_site = attention_branch_site(layer);
}

void attention_forward(const Run& run, int layer) {
  const AttentionWeights& w = run.weights.attention[static_cast<std::size_t>(layer)];
  const AttentionTensors& t = run.pass.attention[static_cast<std::size_t>(layer)];
  const Tensor qkv = run.rows(t.qkv);
  QueryKeyValue x = split_qkv(run, qkv);
  if (run.by_token()) {
    project_token(run, w, t, x);
  } else {
    norm_forward(run, w.norm, t.norm);
    linear_forward(run, w.qkv, run.rows(t.norm.y), qkv, t.workspace);
    rotate(run, qkv, false);
    if (t.k_cache != kNoTensor) extend_caches(run, t, x);
  }

  AttentionForward f;
  f.q = x.q;
  f.k = x.k;
  f.v = x.v;
  f.o = split_heads(run, run.rows(t.o));
  f.m = row_constants(run, t.m);
  f.l = row_constants(run, t.l);
  f.probabilities = probabilities_of(run, t.probabilities);
  f.options = options_of(run, layer, run.pass.forward);
  f.documents = documents_of(run, x.k);
  f.workspace = run.workspace(t.workspace);
  ops::attention_forward(run.ctx, f);

  if (run.by_token()) return linear_add(run, w.out, run.rows(t.o), t.norm);
  linear_forward(run, w.out, run.rows(t.o), run.rows(t.branch), t.workspace);
}

void attention_backward(const Run& run, int layer, ConstTensor dbranch) {
  const AttentionWeights& w = run.weights.attention[static_cast<std::size_t>(layer)];
  const AttentionTensors& t = run.pass.attention[static_cast<std::size_t>(layer)];
  const TensorId workspace = t.workspace_backward;
  const Tensor o = run.rows(t.o), d_o = run.rows(t.d_o);
  linear_backward(run, w.out, dbranch, o, d_o, workspace);

  const QueryKeyValue x = split_qkv(run, run.rows(t.qkv));
  const Tensor dqkv = run.rows(t.dqkv);
  const QueryKeyValue dx = split_qkv(run, dqkv);
  AttentionBackward b;
  b.q = x.q;
  b.k = x.k;
  b.v = x.v;
  b.o = split_heads(run, o);
  b.m = row_constants(run, t.m);
  b.l = row_constants(run, t.l);
  b.probabilities = probabilities_of(run, t.probabilities);
  b.d_o = split_heads(run, d_o);
  b.dq = dx.q;
  b.dk = dx.k;
  b.dv = dx.v;
  b.options = options_of(run, layer, run.pass.backward);
  b.documents = documents_of(run, x.k);
  b.workspace = run.workspace(workspace);
  ops::attention_backward(run.ctx, b);

  rotate(run, dqkv, true);
  linear_backward(run, w.qkv, dqkv, run.rows(t.norm.y), run.rows(t.norm.dy), workspace);
  norm_backward(run, w.norm, t.norm, workspace);
}

}  // namespace tilefold
