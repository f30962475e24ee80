#include "tests/kernels/gpu_run.h"

#include <cstring>
#include <optional>

#include "ops/ops.h"
#include "tests/catch.h"

namespace tilefold::test {
namespace {

// Device memory that starts as the host's bytes.
class Copied {
 public:
  Copied(Context ctx, const void* from, std::int64_t bytes)
      : memory_(ctx.device.allocate(std::max<std::int64_t>(bytes, 1))) {
    ctx.device.copy_to_device(ctx.stream, memory_->data(), from, bytes);
    ctx.stream.synchronize();
  }
  std::byte* data() const { return memory_->data(); }

 private:
  std::unique_ptr<Memory> memory_;
};

// A poisoned array and its double on the device.
class Mirror {
 public:
  Mirror(Context ctx, DType dtype, const Shape& shape, Layout layout)
      : ctx_(ctx), array_(dtype, shape, layout) {}
  Mirror(Context ctx, DType dtype, const Shape& shape, Layout layout,
         const std::vector<double>& values)
      : Mirror(ctx, dtype, shape, layout) {
    array_.set(values);
  }

  Tensor view() {
    const auto bytes = array_.memory();
    if (!there_) there_.emplace(ctx_, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    Tensor on_device = array_.view();
    on_device.data = there_->data() + (static_cast<std::byte*>(on_device.data) - bytes.data());
    return on_device;
  }
  std::vector<double> fetch() {
    const auto bytes = array_.memory();
    ctx_.device.copy_to_host(ctx_.stream, bytes.data(), there_->data(),
                             static_cast<std::int64_t>(bytes.size()));
    ctx_.stream.synchronize();
    CHECK(array_.surroundings_untouched());
    return array_.get();
  }

 private:
  Context ctx_;
  Array array_;
  std::optional<Copied> there_;
};

// Poisoned, with a guard of NaN behind what was asked for.
class Scratch {
 public:
  static constexpr std::size_t kGuard = 4096;
  Scratch(Context ctx, std::int64_t bytes)
      : ctx_(ctx),
        bytes_(static_cast<std::size_t>(bytes)),
        host_(bytes_ + kGuard, std::byte{kPoison}),
        there_(ctx, host_.data(), static_cast<std::int64_t>(host_.size())) {}
  std::span<std::byte> span() const { return {there_.data(), bytes_}; }
  void check() {
    ctx_.device.copy_to_host(ctx_.stream, host_.data(), there_.data(),
                             static_cast<std::int64_t>(host_.size()));
    ctx_.stream.synchronize();
    bool untouched = true;
    for (std::size_t i = bytes_; i < host_.size(); ++i) untouched &= host_[i] == std::byte{kPoison};
    CHECK(untouched);
  }

 private:
  Context ctx_;
  std::size_t bytes_;
  std::vector<std::byte> host_;
  Copied there_;
};

}  // namespace

Outputs run_on_gpu(Context ctx, const Problem& p, const Inputs& in, Passes passes) {
  Mirror q(ctx, p.dtype, p.q_shape(), p.layout, in.q), k(ctx, p.dtype, p.k_shape(), p.layout, in.k);
  Mirror v(ctx, p.dtype, p.k_shape(), p.layout, in.v), o(ctx, p.dtype, p.q_shape(), p.layout);
  const Shape rows{p.batch, p.heads, p.seq_q, 1}, constants{p.batch, p.heads, p.seq_q};
  std::optional<Mirror> kept;
  if (p.keep_probabilities)
    kept.emplace(ctx, p.dtype, Shape{p.batch, p.heads, p.seq_q, p.seq_k}, Layout::dense);
  Mirror m(ctx, DType::f32, rows, Layout::dense), l(ctx, DType::f32, rows, Layout::dense);
  const Copied state(ctx, &p.state, sizeof(StepState));

  AttentionForward forward;
  forward.q = q.view(), forward.k = k.view(), forward.v = v.view(), forward.o = o.view();
  forward.m = Tensor(m.view().data, DType::f32, constants);
  forward.l = Tensor(l.view().data, DType::f32, constants);
  if (kept) forward.probabilities = kept->view();
  forward.options = p.options;
  forward.options.dropout.p = static_cast<float>(p.dropout);
  forward.options.dropout.state = reinterpret_cast<const StepState*>(state.data());
  if (forward.options.dropout.rows_per_sample == 1)
    forward.options.dropout.rows_per_sample = p.seq_q;

  std::optional<Copied> cu_q, cu_k;
  const auto offsets = [&](std::optional<Copied>& to, const std::vector<std::int64_t>& from) {
    const std::int64_t count = static_cast<std::int64_t>(from.size());
    const std::vector<std::int32_t> narrow(from.begin(), from.end());
    const bool is_narrow = p.cu_dtype == DType::i32;
    const void* data = is_narrow ? static_cast<const void*>(narrow.data()) : from.data();
    to.emplace(ctx, data, count * size_of(p.cu_dtype));
    return ConstTensor(to->data(), p.cu_dtype, Shape{count});
  };
  if (!p.cu_q.empty()) {
    forward.documents.cu_seqlens_q = offsets(cu_q, p.cu_q);
    forward.documents.cu_seqlens_k = offsets(cu_k, p.cu_k);
    for (std::size_t x = 1; x < p.cu_q.size(); ++x) {
      PackedDocuments& d = forward.documents;
      d.max_seq_q = std::max(d.max_seq_q, p.cu_q[x] - p.cu_q[x - 1]);
      d.max_seq_k = std::max(d.max_seq_k, p.cu_k[x] - p.cu_k[x - 1]);
    }
  }

  Scratch scratch(ctx, ops::attention_workspace(problem_of(forward), ctx.device.info()));
  forward.workspace = scratch.span();
  ops::attention_forward(ctx, forward);
  Outputs out;
  out.o = o.fetch(), out.m = m.fetch(), out.l = l.fetch();
  scratch.check();
  if (kept) kept->fetch();
  if (passes == Passes::forward) return out;

  Mirror d_o(ctx, p.dtype, p.q_shape(), p.layout, in.d_o), dq(ctx, p.dtype, p.q_shape(), p.layout);
  Mirror dk(ctx, p.dtype, p.k_shape(), p.layout), dv(ctx, p.dtype, p.k_shape(), p.layout);
  AttentionBackward backward;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.o = forward.o, backward.m = forward.m, backward.l = forward.l;
  backward.d_o = d_o.view(), backward.dq = dq.view(), backward.dk = dk.view();
  backward.dv = dv.view();
  backward.probabilities = forward.probabilities;
  backward.options = forward.options;
  backward.documents = forward.documents;
  Scratch more(ctx, ops::attention_workspace(problem_of(backward), ctx.device.info()));
  backward.workspace = more.span();
  ops::attention_backward(ctx, backward);
  out.dq = dq.fetch(), out.dk = dk.fetch(), out.dv = dv.fetch();
  more.check();
  return out;
}

}  // namespace tilefold::test
