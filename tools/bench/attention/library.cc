// The attention kernels as a C function over device pointers, so that compare.py can run them
// beside PyTorch's in one process. Not part of the program.
#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>
#include <string>

#include "kernels/attention/cuda.h"
#include "kernels/attention/portable.h"

using namespace tilefold;

extern "C" {

struct View {
  void* data;
  std::int64_t shape[4], strides[4];
};

struct Call {
  View q, k, v, o, d_o, dq, dk, dv;  // [batch, seq, heads, d]
  void *m, *l;                       // [batch, heads, seq_q]
  void *cu_q, *cu_k;                 // int32, or null
  void* probabilities;               // [batch, heads, seq_q, seq_k] or null
  std::int64_t documents, max_q, max_k;
  void* workspace;
  std::int64_t workspace_bytes, window_left, window_right;
  float scale, softcap;                        // scale 0: the default
  int dtype, causal, deterministic, backward;  // dtype 0: bf16, 1: f16, 2: f32
  // AttentionStrategy; 0: the table's; 1: not the Hopper kernels; query rows of a tile, 0: the
  // table's.
  int strategy, parts, portable, rows;
  void* stream;
};

static thread_local std::string problem_text;
const char* tilefold_last_error() { return problem_text.c_str(); }

static Tensor tensor(const View& v, DType dtype) {
  const Shape shape{v.shape[0], v.shape[1], v.shape[2], v.shape[3]};
  return Tensor(v.data, dtype, shape,
                Shape{v.strides[0], v.strides[1], v.strides[2], v.strides[3]});
}

static AttentionOptions options(const Call& c) {
  AttentionOptions o;
  o.causal = c.causal != 0;
  o.window_left = c.window_left;
  o.window_right = c.window_right;
  if (c.scale > 0) o.scale = c.scale;
  o.softcap = c.softcap;
  o.deterministic = c.deterministic != 0;
  o.strategy = static_cast<AttentionStrategy>(c.strategy);
  return o;
}

static PackedDocuments documents(const Call& c) {
  PackedDocuments d;
  if (c.cu_q == nullptr) return d;
  d.cu_seqlens_q = ConstTensor(c.cu_q, DType::i32, Shape{c.documents + 1});
  d.cu_seqlens_k = ConstTensor(c.cu_k, DType::i32, Shape{c.documents + 1});
  d.max_seq_q = c.max_q;
  d.max_seq_k = c.max_k;
  return d;
}

static AttentionForward forward(const Call& c) {
  const DType t = c.dtype == 0 ? DType::bf16 : c.dtype == 1 ? DType::f16 : DType::f32;
  AttentionForward a;
  a.q = tensor(c.q, t);
  a.k = tensor(c.k, t);
  a.v = tensor(c.v, t);
  a.o = tensor(c.o, t);
  const Shape rows{c.q.shape[0], c.q.shape[2], c.q.shape[1]};
  a.m = Tensor(c.m, DType::f32, rows);
  a.l = Tensor(c.l, DType::f32, rows);
  a.options = options(c);
  a.documents = documents(c);
  if (c.probabilities != nullptr)
    a.probabilities =
        Tensor(c.probabilities, t, Shape{c.q.shape[0], c.q.shape[2], c.q.shape[1], c.k.shape[1]});
  a.workspace = {static_cast<std::byte*>(c.workspace), static_cast<std::size_t>(c.workspace_bytes)};
  return a;
}

static AttentionBackward backward(const Call& c) {
  const AttentionForward f = forward(c);
  AttentionBackward a;
  a.q = f.q;
  a.k = f.k;
  a.v = f.v;
  a.o = f.o;
  a.m = f.m;
  a.l = f.l;
  a.d_o = tensor(c.d_o, f.q.dtype);
  a.dq = tensor(c.dq, f.q.dtype);
  a.dk = tensor(c.dk, f.q.dtype);
  a.dv = tensor(c.dv, f.q.dtype);
  a.options = f.options;
  a.documents = f.documents;
  a.probabilities = f.probabilities;
  a.workspace = f.workspace;
  return a;
}

static const DeviceInfo& device() {
  static const DeviceInfo info = [] {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) throw Error("no GPU");
    return DeviceInfo{.kind = DeviceKind::cuda,
                      .name = p.name,
                      .processors = p.multiProcessorCount,
                      .compute_capability = 10 * p.major + p.minor,
                      .shared_bytes = static_cast<std::int64_t>(p.sharedMemPerBlockOptin),
                      .l2_bytes = p.l2CacheSize};
  }();
  return info;
}

// The table's pick, with what the call forces.
static AttentionChoice choice_of(const Call& c) {
  const AttentionProblem problem = c.backward ? problem_of(backward(c)) : problem_of(forward(c));
  AttentionChoice choice = select_attention(problem, device());
  if (c.portable != 0 && choice.kernel == AttentionKernel::hopper) {
    choice.kernel = AttentionKernel::portable;
    choice.splits = 1;
    choice.workspace_bytes = attention::portable_workspace(problem, 1);
  }
  if (c.rows > 0) choice.tile_q = c.rows;
  if (c.parts > 0) {
    choice.splits = c.parts;
    if (choice.kernel == AttentionKernel::portable)
      choice.workspace_bytes = attention::portable_workspace(problem, c.parts);
  }
  return choice;
}

std::int64_t tilefold_workspace(const Call* c) {
  try {
    return choice_of(*c).workspace_bytes;
  } catch (const std::exception& e) {
    problem_text = e.what();
    return -1;
  }
}

// What `tilefold attention explain` predicts.
static Cost cost_of(const Call* c) {
  return attention_cost(c->backward ? problem_of(backward(*c)) : problem_of(forward(*c)),
                        choice_of(*c).strategy);
}
double tilefold_flops(const Call* c) { return cost_of(c).flops; }
double tilefold_bytes(const Call* c) { return cost_of(c).bytes; }

// 0 when queued; else tilefold_last_error() says why not.
int tilefold_attention(const Call* c) {
  try {
    auto* stream = static_cast<CUstream_st*>(c->stream);
    const AttentionChoice choice = choice_of(*c);
    if (c->backward) {
      attention::cuda_backward(backward(*c), choice, device().processors, stream);
    } else {
      attention::cuda_forward(forward(*c), choice, device().processors, stream);
    }
    return 0;
  } catch (const std::exception& e) {
    problem_text = e.what();
    return 1;
  }
}

}  // extern "C"
