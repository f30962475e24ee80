// What the portable attention kernels are given: tensors by their strides, documents, options; and
// where a row lies. Filled on the host from the contract's arguments.
#pragma once

#include "base/dtype.h"
#include "contract/attention.h"
#include "kernels/attention/geometry.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/warp_tile.cuh"

namespace tilefold::attention {

struct Strided {
  void* data;
  std::int64_t batch, row, head;  // strides in elements
  bool vector;                    // rows of 16-byte chunks: addresses, strides, width
  template <class Element>
  __device__ Element* at(int b, std::int64_t r, int h) const {
    return static_cast<Element*>(data) + b * batch + r * row + h * head;
  }
  template <class Element>
  __device__ tile::RowSource<Element> rows(int b, std::int64_t r, int h) const {
    return {at<const Element>(b, r, h), row, vector};
  }
};

struct Params {
  Strided q, k, v, o, d_o, dq, dk, dv;  // [batch, seq, heads, d]
  float *m, *l;                         // [batch, heads, seq_q]
  float* sums;                          // [batch, heads, seq_q]  D, in the workspace
  Documents documents;
  Window window;
  int batch, heads, key_heads, group, seq_q, seq_k, d;
  int sequences, tiles_q, tiles_k;  // documents or batch elements; tiles of the longest
  float scale, softcap;
  Dropout dropout;
};

// Partial results of parts of the keys: o not divided by l, m in natural units.
struct Partials {
  float* o;      // [parts, rows, d], rows = batch * heads * seq_q
  float *m, *l;  // [parts, rows]
  std::int64_t rows;
  int parts;  // 1: none, results go to the outputs
};

// Gradients from parts of the queries (dK, dV) and of the keys (dQ), [parts, rows of the tensor,
// d].
struct GradientParts {
  float *dq, *dk, *dv;
  std::int64_t query_rows, key_rows;  // batch * seq * heads of a side
  int parts;                          // 1: none, results go to the outputs
};

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(bf16 x) { return ptx::widen(x); }
__device__ inline float widened(f16 x) { return ptx::widen(x); }
__device__ inline void narrow(float* to, float x) { *to = x; }
template <class Element>
__device__ inline void narrow(Element* to, float x) {
  to->bits = static_cast<std::uint16_t>(ptx::pack<Element>(x, 0));
}
// Two neighbours. REQUIRES: `to` is aligned to both.
__device__ inline void narrow_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
template <class Element>
__device__ inline void narrow_pair(Element* to, float x, float y) {
  *reinterpret_cast<std::uint32_t*>(to) = ptx::pack<Element>(x, y);
}

// The document of a row, by bisection; rows after the last offset have none (-1).
__device__ inline int document_of(const void* offsets, bool wide, int count, std::int64_t row) {
  if (row >= offset_at(offsets, wide, count)) return -1;
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offset_at(offsets, wide, middle) <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Sequence `index`: its rows, and the batch element they lie in.
struct Sequence {
  Extent at;
  int batch;
};
__device__ inline Sequence sequence_of(const Params& p, int index) {
  const bool packed = p.documents.q != nullptr;
  return {extent_of(p.documents, packed ? index : 0, p.seq_q, p.seq_k), packed ? 0 : index};
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
  return x;
}

// ---- host

inline Strided strided(const ConstTensor& t) {
  const std::int64_t size = size_of(t.dtype), per = 16 / size;
  bool vector = reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.shape[3] % per == 0;
  for (int i = 0; i < 3; ++i) vector = vector && (t.strides[i] % per == 0 || t.shape[i] == 1);
  return {const_cast<void*>(t.data), t.strides[0], t.strides[1], t.strides[2], vector};
}

// All but outputs, gradients and workspace. Tiles of `rows` queries, `keys` keys.
template <class Args>
Params params_of(const Args& args, std::int64_t rows, std::int64_t keys) {
  const AttentionProblem problem = problem_of(args);
  const PackedDocuments& packed = args.documents;
  const std::int64_t left = args.options.window_left;
  const std::int64_t right = effective_window_right(args.options);
  Params p{};
  p.q = strided(args.q);
  p.k = strided(args.k);
  p.v = strided(args.v);
  p.o = strided(args.o);
  p.m = const_cast<float*>(args.m.template as<float>());
  p.l = const_cast<float*>(args.l.template as<float>());
  if (packed.cu_seqlens_q)
    p.documents = {.q = packed.cu_seqlens_q.data,
                   .k = packed.cu_seqlens_k.data,
                   .wide_q = packed.cu_seqlens_q.dtype == DType::i64,
                   .wide_k = packed.cu_seqlens_k.dtype == DType::i64,
                   .count = static_cast<int>(packed.cu_seqlens_q.shape[0] - 1)};
  p.window = {left < 0 ? kUnlimited : least(left, kUnlimited),
              right < 0 ? kUnlimited : least(right, kUnlimited)};
  p.batch = static_cast<int>(problem.batch);
  p.heads = static_cast<int>(problem.heads);
  p.key_heads = static_cast<int>(problem.kv_heads);
  p.group = static_cast<int>(problem.heads / problem.kv_heads);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_k = static_cast<int>(problem.seq_k);
  p.d = static_cast<int>(problem.d);
  p.sequences = static_cast<int>(p.documents.q ? p.documents.count : problem.batch);
  p.tiles_q = static_cast<int>((problem.max_seq_q + rows - 1) / rows);
  p.tiles_k = static_cast<int>((problem.max_seq_k + keys - 1) / keys);
  p.scale = static_cast<float>(effective_scale(args.options, problem.d));
  p.softcap = args.options.softcap;
  p.dropout = args.options.dropout;
  return p;
}

}  // namespace tilefold::attention
