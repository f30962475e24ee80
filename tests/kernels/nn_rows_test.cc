// Norms, SwiGLU, rotary embedding and token embedding on the GPU against the CPU.
#include "tests/kernels/nn_support.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

struct NormCase {
  std::int64_t tokens, width;
  NormKind kind;
  bool branch, bias;
  float dropout;
};

std::vector<Values> run_norm(const NormCase& n, Context ctx, DType dtype, DType wide) {
  const DType sums = sum_dtype(dtype);
  const Shape rows{n.tokens, n.width}, row{n.width};
  const std::int64_t count = n.tokens * n.width;
  const PlacedState state(ctx, {.seed = 5, .step = 3, .first_sample = 7});
  const Dropout dropout{
      .p = n.dropout, .site = 4, .rows_per_sample = n.tokens, .state = state.get()};

  const Place residual(ctx, wide, rows, even_values(count, 1));
  const Place branch(ctx, dtype, rows, even_values(count, 2));
  const Place weight(ctx, dtype, row, even_values(n.width, 3));
  const Place bias(ctx, dtype, row, even_values(n.width, 4));
  const Place sum(ctx, wide, rows), y(ctx, dtype, rows), mean(ctx, sums, {n.tokens}),
      rstd(ctx, sums, {n.tokens});
  ResidualNormForward f;
  f.kind = n.kind;
  f.residual = residual;
  if (n.branch) f.branch = branch, f.sum = sum;
  f.weight = weight;
  if (n.bias) f.bias = bias;
  f.y = y;
  if (n.kind == NormKind::layer) f.mean = mean;
  f.rstd = rstd;
  f.dropout = dropout;
  ops::residual_norm_forward(ctx, f);

  const Place dy(ctx, dtype, rows, even_values(count, 5));
  const Place dsum(ctx, wide, rows, even_values(count, 6)), dbranch(ctx, dtype, rows);
  const Place dweight(ctx, sums, row, even_values(n.width, 7));
  const Place dbias(ctx, sums, row, even_values(n.width, 8));
  const Place workspace(
      ctx, DType::u8,
      {residual_norm_backward_workspace(n.tokens, n.width, dtype, ctx.device.info())});
  ResidualNormBackward b;
  b.kind = n.kind;
  b.dy = dy;
  b.sum = n.branch ? sum : residual;
  b.weight = weight;
  b.mean = f.mean;
  b.rstd = rstd;
  b.dsum = dsum;
  if (n.branch) b.dbranch = dbranch;
  b.dweight = dweight;
  if (n.bias) b.dbias = dbias;
  b.dropout = dropout;
  b.workspace = workspace.span();
  ops::residual_norm_backward(ctx, b);

  std::vector<Values> out{y.values(), rstd.values(), dsum.values(), dweight.values()};
  if (n.branch) out.push_back(sum.values()), out.push_back(dbranch.values());
  if (n.bias) out.push_back(dbias.values());
  workspace.values();  // the guards
  return out;
}

}  // namespace

TEST_CASE("residual norms: both kinds, odd and even widths, few and many tokens, dropout") {
  for (const NormCase& n : {NormCase{1, 1, NormKind::layer, true, true, 0},
                            NormCase{5, 24, NormKind::rms, true, false, 0},
                            NormCase{7, 33, NormKind::layer, true, true, 0.25f},
                            NormCase{300, 768, NormKind::rms, true, false, 0},
                            NormCase{4500, 64, NormKind::layer, true, true, 0.5f},
                            NormCase{700, 384, NormKind::layer, true, false, 0.2f},
                            NormCase{90, 520, NormKind::layer, true, true, 0},
                            NormCase{3, 1537, NormKind::rms, false, false, 0},
                            NormCase{3, 4096, NormKind::layer, true, true, 0.1f},
                            NormCase{2, 12288, NormKind::rms, true, false, 0}}) {
    INFO(n.tokens << " x " << n.width);
    check_gpu([&](Context ctx, DType dtype, DType wide) { return run_norm(n, ctx, dtype, wide); });
  }
}

TEST_CASE("sanitized: norms that no small model has, for compute-sanitizer") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const NormCase& n : {NormCase{9, 33, NormKind::layer, true, true, 0.25f},
                            NormCase{20, 384, NormKind::layer, true, false, 0.2f},
                            NormCase{40, 768, NormKind::rms, true, false, 0},
                            NormCase{3, 4096, NormKind::layer, true, true, 0.1f},
                            NormCase{2, 12288, NormKind::rms, true, false, 0}})
    CHECK(std::isfinite(run_norm(n, gpu.context(), DType::bf16, DType::f32)[2][0]));
}

TEST_CASE("a norm too wide for a block is refused before a launch") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const NormCase n{1, 1 << 17, NormKind::rms, true, false, 0};
  CHECK_THROWS_AS(run_norm(n, gpu.context(), DType::f32, DType::f32), Error);
}

TEST_CASE("SwiGLU") {
  for (const auto& [tokens, ffn] : std::array<std::array<std::int64_t, 2>, 5>{
           {{1, 1}, {3, 17}, {9, 64}, {130, 2048}, {5, 5000}}})
    check_gpu([&](Context ctx, DType dtype, DType) {
      const Place gate_up(ctx, dtype, {tokens, 2 * ffn}, even_values(tokens * 2 * ffn, 1, 3));
      const Place y(ctx, dtype, {tokens, ffn}), dgate_up(ctx, dtype, {tokens, 2 * ffn});
      const Place dy(ctx, dtype, {tokens, ffn}, even_values(tokens * ffn, 2));
      ops::swiglu_forward(ctx, {.gate_up = gate_up, .y = y});
      ops::swiglu_backward(ctx, {.dy = dy, .gate_up = gate_up, .dgate_up = dgate_up});
      return std::vector<Values>{y.values(), dgate_up.values()};
    });
}

TEST_CASE("rotary embedding of heads inside wider rows, forth and back") {
  for (const std::int64_t d : {2, 6, 16, 64, 128})
    check_gpu([&](Context ctx, DType dtype, DType) {
      constexpr std::int64_t kBatch = 2, kSeq = 37, kHeads = 3, kAll = 5, kContext = 50;
      const std::int64_t row = kAll * d, tokens = kBatch * kSeq;
      const Place x(ctx, dtype, {tokens, row}, even_values(tokens * row, 1));
      const Place positions(ctx, DType::i32, {tokens}, integers(tokens, 2, 0, kContext));
      Array host(sum_dtype(dtype), {kContext, d});
      make_rope_table(kContext, d, 10000, host);
      const Place table(ctx, sum_dtype(dtype), {kContext, d}, host.values());
      Tensor heads = x;
      heads = Tensor(heads.data, dtype, {kBatch, kSeq, kHeads, d}, {kSeq * row, row, d, 1});
      ops::rope(ctx, {.x = heads, .positions = positions, .table = table});
      std::vector<Values> out{x.values()};
      ops::rope(ctx, {.x = heads, .positions = positions, .table = table, .inverse = true});
      out.push_back(x.values());
      return out;
    });
}

TEST_CASE("embedding: few and many rows, repeated tokens, positions, dropout") {
  struct Case {
    std::int64_t tokens, width, vocab, context;
    float dropout;
    int skew = 1;  // ids are the least of so many draws
  };
  for (const Case& e : {Case{1, 1, 1, 0, 0}, Case{50, 9, 3, 25, 0.3f}, Case{2000, 64, 1, 500, 0.2f},
                        Case{3000, 96, 50304, 0, 0}, Case{5000, 772, 300, 100, 0},
                        Case{6000, 384, 65, 60, 0.2f, 12}, Case{9000, 40, 4000, 0, 0, 400}})
    check_gpu([&](Context ctx, DType dtype, DType wide) {
      const DType sums = sum_dtype(dtype);
      const PlacedState state(ctx, {.seed = 9, .step = 1, .first_sample = 2});
      const Dropout dropout{
          .p = e.dropout, .site = 0, .rows_per_sample = e.tokens, .state = state.get()};
      Values ids = integers(e.tokens, 1, 0, e.vocab);
      for (int i = 1; i < e.skew; ++i) {
        const Values more = integers(e.tokens, 10 + static_cast<unsigned>(i), 0, e.vocab);
        for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = std::min(ids[t], more[t]);
      }
      const Place tokens(ctx, DType::i32, {e.tokens}, ids);
      const Place positions(ctx, DType::i32, {e.tokens},
                            integers(e.tokens, 2, 0, std::max<std::int64_t>(e.context, 1)));
      const Place table(ctx, dtype, {e.vocab, e.width}, even_values(e.vocab * e.width, 3));
      const Place places(ctx, dtype, {std::max<std::int64_t>(e.context, 1), e.width},
                         even_values(std::max<std::int64_t>(e.context, 1) * e.width, 4));
      const Place x(ctx, wide, {e.tokens, e.width});
      EmbeddingForward f;
      f.tokens = tokens, f.positions = positions, f.table = table, f.x = x;
      f.dropout = dropout;
      if (e.context > 0) f.position_table = places;
      ops::embedding_forward(ctx, f);

      const Place dx(ctx, wide, {e.tokens, e.width}, even_values(e.tokens * e.width, 5));
      const Place dtable(ctx, sums, {e.vocab, e.width}, even_values(e.vocab * e.width, 6));
      const Place dplaces(ctx, sums, {std::max<std::int64_t>(e.context, 1), e.width},
                          even_values(std::max<std::int64_t>(e.context, 1) * e.width, 7));
      EmbeddingBackward b;
      b.tokens = tokens, b.positions = positions, b.dx = dx, b.dtable = dtable;
      b.dropout = dropout;
      if (e.context > 0) b.dposition_table = dplaces;
      ops::embedding_backward(ctx, b);
      return std::vector<Values>{x.values(), dtable.values(), dplaces.values()};
    });
}

TEST_CASE("keys and values into a cache, at places of the device; one place outside") {
  for (const std::int64_t d : {1, 24, 64})
    check_gpu([&](Context ctx, DType dtype, DType) {
      constexpr std::int64_t kBatch = 2, kSeq = 5, kHeads = 3, kCache = 11;
      const std::int64_t row = 2 * kHeads * d, tokens = kBatch * kSeq;
      const Place kv(ctx, dtype, {tokens, row}, even_values(tokens * row, 1));
      const auto heads = [&](std::int64_t first) {
        const Tensor t = kv;
        return Tensor(static_cast<std::byte*>(t.data) + first * d * size_of(dtype), dtype,
                      {kBatch, kSeq, kHeads, d}, {kSeq * row, row, d, 1});
      };
      const Place places(ctx, DType::i32, {tokens}, {4, 5, 6, 7, 8, 0, 10, 2, 11, 3});
      const Shape cache{kBatch, kCache, kHeads, d};
      const Place k_cache(ctx, dtype, cache, even_values(cache.numel(), 2));
      const Place v_cache(ctx, dtype, cache, even_values(cache.numel(), 3));
      ops::cache_append(ctx, {.k = heads(0),
                              .v = heads(kHeads),
                              .places = places,
                              .k_cache = k_cache,
                              .v_cache = v_cache});
      return std::vector<Values>{k_cache.values(), v_cache.values()};
    });
}

TEST_CASE("a token outside the table makes NaN of its row, not another row's") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const Context ctx = gpu.context();
  const Place tokens(ctx, DType::i32, {3}, {0, 7, -1}),
      table(ctx, DType::f32, {7, 8}, even_values(56, 1));
  const Place x(ctx, DType::f32, {3, 8});
  EmbeddingForward f;
  f.tokens = tokens, f.table = table, f.x = x;
  ops::embedding_forward(ctx, f);
  const Values got = x.values();
  CHECK(!std::isnan(got[0]));
  CHECK(std::isnan(got[8]));
  CHECK(std::isnan(got[23]));
}
