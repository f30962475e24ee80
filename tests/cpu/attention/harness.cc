#include "tests/cpu/attention/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <sstream>

#include "cpu/reference/attention.h"
#include "ops/ops.h"
#include "tests/catch.h"

namespace tilefold::test {
namespace {

constexpr std::size_t kWorkspaceGuard = 4096;  // bytes
constexpr std::int64_t kFewPairs = 1000;

Layout turned(Layout layout, int by) {
  return static_cast<Layout>((static_cast<int>(layout) + by) % 3);
}

AttentionOptions options_of(const Problem& p) {
  AttentionOptions options = p.options;
  options.dropout.p = static_cast<float>(p.dropout);
  options.dropout.state = &p.state;
  if (options.dropout.rows_per_sample == 1) options.dropout.rows_per_sample = p.seq_q;
  return options;
}

// Offsets in the problem's integer type, alive as long as the views that point at them.
struct Offsets {
  explicit Offsets(const Problem& p) {
    if (p.cu_q.empty()) return;
    const std::int64_t count = static_cast<std::int64_t>(p.cu_q.size());
    narrow_q.assign(p.cu_q.begin(), p.cu_q.end());
    narrow_k.assign(p.cu_k.begin(), p.cu_k.end());
    wide_q = p.cu_q;
    wide_k = p.cu_k;
    const bool narrow = p.cu_dtype == DType::i32;
    const void* q = narrow ? static_cast<const void*>(narrow_q.data()) : wide_q.data();
    const void* k = narrow ? static_cast<const void*>(narrow_k.data()) : wide_k.data();
    documents.cu_seqlens_q = ConstTensor(q, p.cu_dtype, {count});
    documents.cu_seqlens_k = ConstTensor(k, p.cu_dtype, {count});
    for (std::size_t x = 1; x < p.cu_q.size(); ++x) {
      documents.max_seq_q = std::max(documents.max_seq_q, p.cu_q[x] - p.cu_q[x - 1]);
      documents.max_seq_k = std::max(documents.max_seq_k, p.cu_k[x] - p.cu_k[x - 1]);
    }
  }
  std::vector<std::int32_t> narrow_q, narrow_k;
  std::vector<std::int64_t> wide_q, wide_k;
  PackedDocuments documents;
};

AttentionProblem planned(const Problem& p, const Offsets& offsets, bool backward) {
  AttentionForward args;
  args.q = ConstTensor(nullptr, p.dtype, p.q_shape());
  args.k = ConstTensor(nullptr, p.dtype, p.k_shape());
  args.options = options_of(p);
  args.documents = offsets.documents;
  AttentionProblem problem = problem_of(args);
  problem.backward = backward;
  return problem;
}

bool offers(const AttentionProblem& problem, const DeviceInfo& device) {
  try {
    select_attention(problem, device);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// Poisoned workspace of exactly the size asked for, with a guard behind it.
class Workspace {
 public:
  explicit Workspace(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    memory_.assign(bytes_ + kWorkspaceGuard + 64, std::byte{kPoison});
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = memory_.data() + (64 - address % 64) % 64;
  }
  std::span<std::byte> span() { return {start_, bytes_}; }
  bool guard_untouched() const {
    return std::all_of(start_ + bytes_, start_ + bytes_ + kWorkspaceGuard,
                       [](std::byte x) { return x == std::byte{kPoison}; });
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* start_;
};

// The reference on dense arrays of `dtype`.
Outputs reference_outputs(const Problem& p, const Inputs& in, DType dtype,
                          cpu::reference::Terms terms, Passes passes) {
  Array q(dtype, p.q_shape(), Layout::dense), k(dtype, p.k_shape(), Layout::dense);
  Array v(dtype, p.k_shape(), Layout::dense), o(dtype, p.q_shape(), Layout::dense);
  q.set(in.q), k.set(in.k), v.set(in.v);
  const DType state = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Shape rows{p.batch, p.heads, p.seq_q, 1};
  Array m(state, rows, Layout::dense), l(state, rows, Layout::dense);
  const Offsets offsets(p);
  AttentionForward forward{.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .o = o.view(),
                           .m = m.view(),
                           .l = l.view(),
                           .probabilities = {},
                           .options = options_of(p),
                           .documents = offsets.documents,
                           .workspace = {}};
  cpu::reference::attention_forward(forward, terms);
  Outputs out;
  out.o = o.get(), out.m = m.get(), out.l = l.get();
  if (passes == Passes::forward) return out;

  Array d_o(dtype, p.q_shape(), Layout::dense), dq(dtype, p.q_shape(), Layout::dense);
  Array dk(dtype, p.k_shape(), Layout::dense), dv(dtype, p.k_shape(), Layout::dense);
  d_o.set(in.d_o);
  AttentionBackward backward{.q = q.view(),
                             .k = k.view(),
                             .v = v.view(),
                             .o = o.view(),
                             .m = m.view(),
                             .l = l.view(),
                             .probabilities = {},
                             .d_o = d_o.view(),
                             .dq = dq.view(),
                             .dk = dk.view(),
                             .dv = dv.view(),
                             .options = options_of(p),
                             .documents = offsets.documents,
                             .workspace = {}};
  cpu::reference::attention_backward(backward, terms);
  out.dq = dq.get(), out.dk = dk.get(), out.dv = dv.get();
  return out;
}

constexpr std::pair<const char*, std::vector<double> Outputs::*> kParts[] = {
    {"o", &Outputs::o}, {"dq", &Outputs::dq}, {"dk", &Outputs::dk}, {"dv", &Outputs::dv}};

// Raises `errors` to the largest differences; not finite once one is not.
void add_errors(std::array<double, 4>& errors, const Outputs& exact, const Outputs& plain) {
  for (std::size_t x = 0; x < 4; ++x) {
    const std::vector<double>&want = exact.*kParts[x].second, &rough = plain.*kParts[x].second;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error = std::abs(rough[i] - want[i]);
      if (!(error <= errors[x]) && !std::isnan(errors[x])) errors[x] = error;
    }
  }
}

// Visible (query, key) pairs.
std::int64_t live_pairs(const Problem& p) {
  const std::vector<std::int64_t> whole_q = {0, p.seq_q}, whole_k = {0, p.seq_k};
  const std::vector<std::int64_t>& cu_q = p.cu_q.empty() ? whole_q : p.cu_q;
  const std::vector<std::int64_t>& cu_k = p.cu_k.empty() ? whole_k : p.cu_k;
  std::int64_t pairs = 0;
  for (std::size_t x = 1; x < cu_q.size(); ++x)
    for (std::int64_t i = 0; i < cu_q[x] - cu_q[x - 1]; ++i) {
      const KeyRange keys =
          visible_keys(p.options, i, cu_q[x] - cu_q[x - 1], cu_k[x] - cu_k[x - 1]);
      pairs += keys.end - keys.begin;
    }
  return pairs * p.batch * p.heads;
}

// The first element beyond its tolerance, or nothing.
template <class Tolerance>
void compare(std::ostringstream& report, const char* name, const std::vector<double>& got,
             const std::vector<double>& want, Tolerance&& tolerance) {
  if (got.size() != want.size()) {
    report << name << ": " << got.size() << " elements for " << want.size() << "; ";
    return;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // equal infinities too
    const double error = std::abs(got[i] - want[i]), allowed = tolerance(i);
    if (error <= allowed) continue;  // NaN does not pass
    report << name << "[" << i << "] is " << got[i] << " for " << want[i] << ", error " << error
           << ", allowed " << allowed << "; ";
    return;
  }
}

}  // namespace

std::string Problem::text() const {
  std::ostringstream out;
  out << name_of(options.strategy) << " " << name_of(dtype) << " batch " << batch << " seq "
      << seq_q << "x" << seq_k << " heads " << heads << "/" << kv_heads << " d " << d << " window "
      << options.window_left << "," << options.window_right << (options.causal ? " causal" : "")
      << " softcap " << options.softcap << " dropout " << dropout << " layout "
      << static_cast<int>(layout) << " documents " << cu_q.size()
      << (keep_probabilities ? " kept probabilities" : "");
  if (options.scale) out << " scale " << *options.scale;
  return out.str();
}

std::vector<double> Outputs::lse() const {
  std::vector<double> out(m.size());
  for (std::size_t i = 0; i < m.size(); ++i) out[i] = m[i] + std::log(l[i]);
  return out;
}

void round_inputs(Inputs& inputs, DType dtype) {
  for (auto* x : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_o})
    for (double& value : *x) value = rounded(value, dtype);
}

Inputs normal_inputs(const Problem& problem, std::uint64_t seed, double factor) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](const Shape& shape, double f) {
    std::vector<double> x(static_cast<std::size_t>(shape.numel()));
    for (double& value : x) value = f * normal(random);
    return x;
  };
  Inputs in;
  in.q = draw(problem.q_shape(), factor);
  in.k = draw(problem.k_shape(), factor);
  in.v = draw(problem.k_shape(), factor);
  in.d_o = draw(problem.q_shape(), 1);
  round_inputs(in, problem.dtype);
  return in;
}

bool offered(Context ctx, const Problem& problem, bool backward) {
  const Offsets offsets(problem);
  return offers(planned(problem, offsets, backward), ctx.device.info());
}

Outputs run(Context ctx, const Problem& p, const Inputs& in, Passes passes) {
  Array q(p.dtype, p.q_shape(), p.layout), k(p.dtype, p.k_shape(), turned(p.layout, 1));
  Array v(p.dtype, p.k_shape(), turned(p.layout, 2)), o(p.dtype, p.q_shape(), turned(p.layout, 1));
  q.set(in.q), k.set(in.k), v.set(in.v);
  const DType state = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Shape rows{p.batch, p.heads, p.seq_q, 1};
  Array m(state, rows, Layout::dense), l(state, rows, Layout::dense);
  const Shape constants{p.batch, p.heads, p.seq_q};
  const Shape pairs{p.batch, p.heads, p.seq_q, p.seq_k};
  std::optional<Array> kept;
  if (p.keep_probabilities) kept.emplace(p.dtype, pairs, Layout::dense);
  const Tensor probabilities = kept ? kept->view() : Tensor{};
  const Offsets offsets(p);
  AttentionProblem problem = planned(p, offsets, false);

  Workspace scratch(ops::attention_workspace(problem, ctx.device.info()));
  AttentionForward forward{.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .o = o.view(),
                           .m = Tensor(m.view().data, state, constants),
                           .l = Tensor(l.view().data, state, constants),
                           .probabilities = probabilities,
                           .options = problem.options,
                           .documents = offsets.documents,
                           .workspace = scratch.span()};
  ops::attention_forward(ctx, forward);
  ctx.stream.synchronize();
  for (const Array* x : {&o, &m, &l}) CHECK(x->surroundings_untouched());
  if (kept) CHECK(kept->surroundings_untouched());
  CHECK(scratch.guard_untouched());
  Outputs out;
  out.o = o.get(), out.m = m.get(), out.l = l.get();
  if (passes == Passes::forward) return out;

  problem.backward = true;
  if (!offers(problem, ctx.device.info())) problem.options.strategy = AttentionStrategy::automatic;
  Array d_o(p.dtype, p.q_shape(), turned(p.layout, 2)), dq(p.dtype, p.q_shape(), p.layout);
  Array dk(p.dtype, p.k_shape(), turned(p.layout, 1)),
      dv(p.dtype, p.k_shape(), turned(p.layout, 2));
  d_o.set(in.d_o);
  Workspace more(ops::attention_workspace(problem, ctx.device.info()));
  AttentionBackward backward{.q = q.view(),
                             .k = k.view(),
                             .v = v.view(),
                             .o = o.view(),
                             .m = forward.m,
                             .l = forward.l,
                             .probabilities = probabilities,
                             .d_o = d_o.view(),
                             .dq = dq.view(),
                             .dk = dk.view(),
                             .dv = dv.view(),
                             .options = problem.options,
                             .documents = offsets.documents,
                             .workspace = more.span()};
  ops::attention_backward(ctx, backward);
  ctx.stream.synchronize();
  for (const Array* x : {&dq, &dk, &dv}) CHECK(x->surroundings_untouched());
  CHECK(more.guard_untouched());
  out.dq = dq.get(), out.dk = dk.get(), out.dv = dv.get();
  return out;
}

Expected expect_outputs(const Problem& p, const Inputs& in, Passes passes) {
  using cpu::reference::Terms;
  Expected x;
  x.exact = reference_outputs(p, in, DType::f64, Terms::as_they_are, passes);
  x.plain = reference_outputs(p, in, p.dtype, Terms::as_they_are, passes);
  x.size = reference_outputs(p, in, DType::f64, Terms::absolute, passes);
  add_errors(x.plain_error, x.exact, x.plain);
  const bool narrow = p.dtype == DType::bf16 || p.dtype == DType::f16;
  for (std::uint64_t draw = 0; narrow && live_pairs(p) < kFewPairs && draw < 4; ++draw) {
    const Inputs more = normal_inputs(p, 1000 + draw);
    add_errors(x.plain_error, reference_outputs(p, more, DType::f64, Terms::as_they_are, passes),
               reference_outputs(p, more, p.dtype, Terms::as_they_are, passes));
  }
  return x;
}

std::string disagreement(const Problem& p, const Outputs& got, const Expected& expected) {
  const double u = unit_roundoff(p.dtype), u_sum = p.dtype == DType::f64 ? u : 0x1p-24;
  std::ostringstream report;
  for (std::size_t x = 0; x < 4; ++x) {
    const auto [name, part] = kParts[x];
    const std::vector<double>&want = expected.exact.*part, &size = expected.size.*part;
    const double plain_error = expected.plain_error[x];
    if (!std::isfinite(plain_error)) report << name << ": the plain result is not finite; ";
    compare(report, name, got.*part, want, [&](std::size_t i) {
      return 2 * plain_error + 4 * u_sum * size[i] + 2 * u * std::abs(want[i]);
    });
  }
  // A score is a sum of d products in float32; where scores are alike, their roundings are too.
  const double relative = std::max(1e-6, static_cast<double>(p.d) * 0x1p-25);
  const auto close = [&](const std::vector<double>& want) {
    return [&want, relative](std::size_t i) { return 1e-5 + relative * std::abs(want[i]); };
  };
  const std::vector<double> lse = expected.exact.lse();
  compare(report, "m", got.m, expected.exact.m, close(expected.exact.m));
  compare(report, "lse", got.lse(), lse, close(lse));
  for (std::size_t i = 0; i < got.l.size(); ++i)
    if ((got.l[i] == 0) != (expected.exact.l[i] == 0)) {
      report << "l[" << i << "] is " << got.l[i] << " for " << expected.exact.l[i] << "; ";
      break;
    }
  const std::string text = report.str();
  return text.empty() ? text : p.text() + ": " + text;
}

Cpu::Cpu(int threads) : device(open_cpu_device(threads)), stream(device->make_stream()) {}

}  // namespace tilefold::test
