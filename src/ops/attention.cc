// The door of attention: every REQUIRES of contract/attention.h is checked here, once.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "contract/workspace.h"
#include "ops/ops.h"

namespace tilefold::ops {
namespace {

constexpr std::int64_t kMaxHeadWidth = 256;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(str("attention: ", parts...));
}

// An argument with its name, for messages.
struct Named {
  std::string_view name;
  const ConstTensor& tensor;
};

void check_memory(const Named& x) {
  if (x.tensor.numel() == 0) return;
  if (!x.tensor.data) refuse(x.name, " is null; allowed: memory for shape ", x.tensor.shape.text());
  const auto size = static_cast<std::uintptr_t>(size_of(x.tensor.dtype));
  if (reinterpret_cast<std::uintptr_t>(x.tensor.data) % size != 0)
    refuse(x.name, " starts at ", x.tensor.data, "; allowed: a multiple of ", size, " bytes, its ",
           name_of(x.tensor.dtype), " element");
}

void check_shape(const Named& x, const Shape& expected, std::string_view why) {
  if (x.tensor.shape == expected) return;
  refuse(x.name, " has shape ", x.tensor.shape.text(), "; allowed: ", expected.text(), ", ", why);
}

void check_dtype(const Named& x, DType expected, std::string_view why) {
  if (x.tensor.dtype == expected) return;
  refuse(x.name, " has dtype ", name_of(x.tensor.dtype), "; allowed: ", name_of(expected), ", ",
         why);
}

void check_last_stride(const Named& x) {
  const int last = x.tensor.shape.rank - 1;
  if (x.tensor.strides.rank != x.tensor.shape.rank)
    refuse(x.name, " has ", x.tensor.strides.rank, " strides for shape ", x.tensor.shape.text());
  if (x.tensor.shape[last] > 1 && x.tensor.strides[last] != 1)
    refuse(x.name, " has last stride ", x.tensor.strides[last],
           "; allowed: 1 (copy it to an array whose head width is contiguous)");
}

// An output's elements must not share memory: each dimension steps past all that the dimensions of
// smaller strides reach.
void check_distinct_elements(const Named& x) {
  if (x.tensor.numel() == 0) return;
  const Shape &shape = x.tensor.shape, &strides = x.tensor.strides;
  for (int dim = 0; dim < shape.rank; ++dim) {
    if (shape[dim] == 1) continue;
    std::int64_t reach = 1;
    for (int other = 0; other < shape.rank; ++other) {
      const bool below =
          strides[other] < strides[dim] || (strides[other] == strides[dim] && other < dim);
      if (below && shape[other] > 1) reach += (shape[other] - 1) * strides[other];
    }
    if (strides[dim] < std::max<std::int64_t>(reach, 1))
      refuse(x.name, " is written, but its strides ", strides.text(), " for shape ", shape.text(),
             " let elements overlap; allowed: stride ", std::max<std::int64_t>(reach, 1),
             " or more in dimension ", dim);
  }
}

void check_input(const Named& x, const Named& q) {
  check_dtype(x, q.tensor.dtype, "q's");
  check_last_stride(x);
  check_memory(x);
}

void check_output(const Named& x, const Named& q) {
  check_input(x, q);
  check_distinct_elements(x);
}

void check_row_constants(const Named& x, const Named& q) {
  const Shape& s = q.tensor.shape;
  check_shape(x, {s[0], s[2], s[1]}, "[batch, heads, seq_q] of q");
  check_dtype(x, sum_dtype(q.tensor.dtype), "the type that softmax state is kept in");
  if (!x.tensor.dense())
    refuse(x.name, " has strides ", x.tensor.strides.text(), "; allowed: dense, ",
           dense_strides(x.tensor.shape).text());
  check_memory(x);
}

// Only what materializes the probabilities can keep them.
void check_probabilities(const Named& x, const Named& q, const Named& k,
                         const AttentionOptions& options, bool packed) {
  if (!x.tensor) return;
  if (options.strategy != AttentionStrategy::naive || packed)
    refuse("probabilities are given with strategy ", name_of(options.strategy),
           packed ? " and cu_seqlens" : "", "; allowed: naive, without cu_seqlens");
  const Shape &sq = q.tensor.shape, &sk = k.tensor.shape;
  check_shape(x, {sq[0], sq[2], sq[1], sk[1]}, "[batch, heads, seq_q, seq_k]");
  check_dtype(x, q.tensor.dtype, "q's");
  if (!x.tensor.dense())
    refuse(x.name, " has strides ", x.tensor.strides.text(), "; allowed: dense, ",
           dense_strides(x.tensor.shape).text());
  check_memory(x);
}

// Outputs and inputs may be interleaved views of one array, but not the same view.
void check_apart(std::span<const Named> written, std::span<const Named> read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i].tensor.numel() == 0) continue;
    const auto clash = [&](const Named& other) {
      if (written[i].tensor.data == other.tensor.data && other.tensor.numel() > 0)
        refuse(written[i].name, " and ", other.name,
               " are the same memory; allowed: an output of its own");
    };
    for (const Named& other : read) clash(other);
    for (const Named& other : written.subspan(i + 1)) clash(other);
  }
}

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t d) {
  if (d < 1 || d > kMaxHeadWidth)
    refuse("q has head width d = ", d, "; allowed: 1 to ", kMaxHeadWidth);
  if (heads < 1) refuse("q has ", heads, " heads; allowed: 1 or more");
  if (kv_heads < 1) refuse("k has ", kv_heads, " heads; allowed: 1 or more");
  if (heads % kv_heads != 0)
    refuse("q has ", heads, " heads and k has ", kv_heads,
           "; allowed: a number of query heads that kv heads divide");
}

void check_query_key_value(const Named& q, const Named& k, const Named& v,
                           const DeviceInfo& device) {
  for (const Named* x : {&q, &k, &v})
    if (x->tensor.shape.rank != 4)
      refuse(x->name, " has shape ", x->tensor.shape.text(),
             "; allowed: four dimensions, [batch, seq, heads, d]");
  const DType dtype = q.tensor.dtype;
  const bool on_cpu = device.kind == DeviceKind::cpu;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16 &&
      !(dtype == DType::f64 && on_cpu))
    refuse("q has dtype ", name_of(dtype), "; allowed on ", device.name, ": f32, bf16, f16",
           on_cpu ? ", f64" : "");

  const Shape& sq = q.tensor.shape;
  const Shape& sk = k.tensor.shape;
  for (int i = 0; i < 4; ++i)
    for (const Named* x : {&q, &k, &v})
      if (x->tensor.shape[i] < 0)
        refuse(x->name, " has shape ", x->tensor.shape.text(), "; allowed: sizes of 0 and above");
  check_heads(sq[2], sk[2], sq[3]);
  check_shape(k, {sq[0], sk[1], sk[2], sq[3]}, "with q's batch and head width");
  check_shape(v, sk, "k's");
  for (const Named* x : {&q, &k, &v}) check_input(*x, q);
}

void check_options(const AttentionOptions& o, const Shape& q, bool packed) {
  if (o.window_left < -1)
    refuse("window_left is ", o.window_left, "; allowed: -1 (no limit) or 0 and above");
  if (o.window_right < -1)
    refuse("window_right is ", o.window_right, "; allowed: -1 (no limit) or 0 and above");
  if (o.scale && !(std::isfinite(*o.scale) && *o.scale > 0))
    refuse("scale is ", *o.scale, "; allowed: finite and above 0");
  if (!(std::isfinite(o.softcap) && o.softcap >= 0))
    refuse("softcap is ", o.softcap, "; allowed: 0 (none), or finite and above 0");

  const Dropout& dropout = o.dropout;
  if (!(dropout.p >= 0 && dropout.p < 1))
    refuse("dropout.p is ", dropout.p, "; allowed: 0 (none) and above, below 1");
  if (dropout.p == 0) return;
  if (!dropout.state) refuse("dropout.state is null; allowed: the step's state when dropout.p > 0");
  if (dropout.site >= 65536) refuse("dropout.site is ", dropout.site, "; allowed: 0 to 65535");
  if (q[2] > 65536) refuse("q has ", q[2], " heads; allowed with dropout: 1 to 65536");
  if (dropout.rows_per_sample < 1 || (!packed && dropout.rows_per_sample != q[1]))
    refuse("dropout.rows_per_sample is ", dropout.rows_per_sample,
           "; allowed: ", packed ? "1 and above" : str(q[1], ", the queries of a batch element"));
}

template <class Int>
void check_offsets(std::string_view name, const ConstTensor& cu, std::int64_t rows,
                   std::string_view max_name, std::int64_t max_rows) {
  const Int* offsets = cu.as<Int>();
  const std::int64_t count = cu.shape[0];
  if (offsets[0] != 0) refuse(name, "[0] is ", offsets[0], "; allowed: 0");
  for (std::int64_t x = 1; x < count; ++x) {
    const std::int64_t length = static_cast<std::int64_t>(offsets[x]) - offsets[x - 1];
    if (length < 0)
      refuse(name, "[", x, "] is ", offsets[x], " after ", offsets[x - 1],
             "; allowed: offsets that do not decrease");
    if (length > max_rows)
      refuse(name, " has a document of ", length, " rows; allowed: up to ", max_name, " = ",
             max_rows);
  }
  if (offsets[count - 1] > rows)
    refuse(name, " ends at ", offsets[count - 1], "; allowed: up to the ", rows, " rows there are");
}

// The offsets themselves are read where the host can: on the CPU.
void check_documents(const PackedDocuments& packed, const Shape& q, const Shape& k,
                     const DeviceInfo& device) {
  const Named cu_q{"cu_seqlens_q", packed.cu_seqlens_q}, cu_k{"cu_seqlens_k", packed.cu_seqlens_k};
  if (!cu_q.tensor && !cu_k.tensor) return;
  for (const Named* x : {&cu_q, &cu_k}) {
    if (!x->tensor) refuse(x->name, " is missing; allowed: both offsets, or none");
    if (x->tensor.shape.rank != 1 || x->tensor.shape[0] < 1 || !x->tensor.dense())
      refuse(x->name, " has shape ", x->tensor.shape.text(),
             "; allowed: one dense dimension, [documents + 1]");
    if (x->tensor.dtype != DType::i32 && x->tensor.dtype != DType::i64)
      refuse(x->name, " has dtype ", name_of(x->tensor.dtype), "; allowed: i32, i64");
    check_memory(*x);
  }
  if (!(cu_q.tensor.shape == cu_k.tensor.shape))
    refuse("cu_seqlens_k has ", cu_k.tensor.shape[0], " offsets; allowed: ", cu_q.tensor.shape[0],
           ", as many as cu_seqlens_q");
  if (q[0] != 1) refuse("q has batch ", q[0], "; allowed with cu_seqlens: 1");
  if (packed.max_seq_q < 0 || packed.max_seq_q > q[1])
    refuse("max_seq_q is ", packed.max_seq_q, "; allowed: 0 to q's ", q[1], " rows");
  if (packed.max_seq_k < 0 || packed.max_seq_k > k[1])
    refuse("max_seq_k is ", packed.max_seq_k, "; allowed: 0 to k's ", k[1], " rows");
  if (device.kind != DeviceKind::cpu) return;
  const auto check = [](const Named& x, std::int64_t rows, std::string_view max_name,
                        std::int64_t max_rows) {
    x.tensor.dtype == DType::i32
        ? check_offsets<std::int32_t>(x.name, x.tensor, rows, max_name, max_rows)
        : check_offsets<std::int64_t>(x.name, x.tensor, rows, max_name, max_rows);
  };
  check(cu_q, q[1], "max_seq_q", packed.max_seq_q);
  check(cu_k, k[1], "max_seq_k", packed.max_seq_k);
}

void check_workspace(std::span<std::byte> workspace, std::int64_t needed) {
  if (static_cast<std::int64_t>(workspace.size()) < needed)
    refuse("workspace has ", workspace.size(), " bytes; allowed: ", needed,
           " or more (attention_workspace)");
  if (needed > 0 && reinterpret_cast<std::uintptr_t>(workspace.data()) % kWorkspaceAlign != 0)
    refuse("workspace starts at ", static_cast<const void*>(workspace.data()),
           "; allowed: a multiple of ", kWorkspaceAlign, " bytes");
}

}  // namespace

std::int64_t attention_workspace(const AttentionProblem& problem, const DeviceInfo& device) {
  check_heads(problem.heads, problem.kv_heads, problem.d);
  return select_attention(problem, device).workspace_bytes;
}

void attention_forward(Context ctx, const AttentionForward& args) {
  const DeviceInfo& device = ctx.device.info();
  const ConstTensor o_view = args.o, m_view = args.m, l_view = args.l, p_view = args.probabilities;
  const Named q{"q", args.q}, k{"k", args.k}, v{"v", args.v};
  const Named o{"o", o_view}, m{"m", m_view}, l{"l", l_view};
  check_query_key_value(q, k, v, device);
  check_shape(o, args.q.shape, "q's");
  check_output(o, q);
  check_row_constants(m, q);
  check_row_constants(l, q);
  const bool packed(args.documents.cu_seqlens_q);
  check_probabilities({"probabilities", p_view}, q, k, args.options, packed);
  check_apart(std::array{o, m, l}, std::array{q, k, v});
  check_documents(args.documents, args.q.shape, args.k.shape, device);
  check_options(args.options, args.q.shape, packed);
  if (args.o.numel() == 0) return;

  const AttentionChoice choice = select_attention(problem_of(args), device);
  check_workspace(args.workspace, choice.workspace_bytes);
  ctx.device.backend().attention_forward(ctx.stream, args, choice);
}

void attention_backward(Context ctx, const AttentionBackward& args) {
  const DeviceInfo& device = ctx.device.info();
  const ConstTensor dq_view = args.dq, dk_view = args.dk, dv_view = args.dv;
  const Named q{"q", args.q}, k{"k", args.k}, v{"v", args.v};
  const Named o{"o", args.o}, m{"m", args.m}, l{"l", args.l}, d_o{"d_o", args.d_o};
  const Named dq{"dq", dq_view}, dk{"dk", dk_view}, dv{"dv", dv_view};
  check_query_key_value(q, k, v, device);
  for (const Named* x : {&o, &d_o}) {
    check_shape(*x, args.q.shape, "q's");
    check_input(*x, q);
  }
  check_row_constants(m, q);
  check_row_constants(l, q);
  const bool packed(args.documents.cu_seqlens_q);
  check_probabilities({"probabilities", args.probabilities}, q, k, args.options, packed);
  check_shape(dq, args.q.shape, "q's");
  check_shape(dk, args.k.shape, "k's");
  check_shape(dv, args.k.shape, "k's");
  for (const Named* x : {&dq, &dk, &dv}) check_output(*x, q);
  check_apart(std::array{dq, dk, dv}, std::array{q, k, v, o, m, l, d_o});
  check_documents(args.documents, args.q.shape, args.k.shape, device);
  check_options(args.options, args.q.shape, packed);
  if (args.dq.numel() == 0 && args.dk.numel() == 0) return;

  const AttentionChoice choice = select_attention(problem_of(args), device);
  check_workspace(args.workspace, choice.workspace_bytes);
  ctx.device.backend().attention_backward(ctx.stream, args, choice);
}

}  // namespace tilefold::ops
