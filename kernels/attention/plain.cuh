// The body of plain.h. A warp takes one row and goes over the others 32 at a time: each lane makes
// one score, then all lanes gather the 32 rows' columns, each its own. No chain of additions is
// longer than a part: a score sums d in parts of kScorePart columns, the 32 rows of a step are
// added up before they join a sum (in one chain a score of d 128 loses 1e-6 and its p as much; sums
// over 5,000 keys lose sqrt(5000) roundings).
#pragma once

#include "kernels/attention/params.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

constexpr int kPlainWarps = 4, kMostColumns = 8;  // columns of a lane: width 256

// One warp's row, and where it lies.
struct PlainRow {
  Extent at;
  int batch, head, row;  // row in the document; below 0: none
  bool live;             // belongs to a document
  std::int64_t constants;
};

__device__ inline std::int64_t warp_index() {
  return static_cast<std::int64_t>(blockIdx.x) * kPlainWarps + threadIdx.x / 32;
}

constexpr int kScorePart = 32;

template <class Element>
__device__ inline float dot(const Element* a, const Element* b, int d) {
  float sum = 0;
  for (int i = 0; i < d; i += kScorePart) {
    float part = 0;
    const int end = min(i + kScorePart, d);
    for (int e = i; e < end; ++e) part = fmaf(widened(a[e]), widened(b[e]), part);
    sum += part;
  }
  return sum;
}

// 1 / (1 - p) or 0, as dropout.h says; rows of the batch element.
__device__ inline float kept(const Params& p, int batch, int head, std::int64_t query,
                             std::int64_t key) {
  const Dropout& x = p.dropout;
  if (x.p == 0) return 1;
  const std::int64_t row = batch * static_cast<std::int64_t>(p.seq_q) + query;
  if (p.documents.q) key %= x.rows_per_sample;
  const Philox::Words words = attention_dropout_words(
      dropout_key(x.state->seed, x.state->step),
      static_cast<std::uint64_t>(x.state->first_sample + row / x.rows_per_sample), x.site,
      static_cast<std::uint32_t>(head), static_cast<std::uint64_t>(row % x.rows_per_sample),
      static_cast<std::uint64_t>(key));
  return words[static_cast<std::size_t>(key % 4)] >= dropout_threshold(x.p) ? 1 / (1 - x.p) : 0.f;
}

// The capped score, and its slope.
struct Score {
  float t, slope;
};
__device__ inline Score scored(const Params& p, float product) {
  const float s = product * p.scale;
  if (p.softcap == 0) return {s, 1};
  const float t = tanhf(s / p.softcap);
  return {p.softcap * t, 1 - t * t};
}

// A warp's query row.
__device__ inline PlainRow query_row(const Params& p) {
  const std::int64_t index = warp_index();
  PlainRow x;
  x.row = -1;
  x.live = false;
  if (index >= static_cast<std::int64_t>(p.batch) * p.heads * p.seq_q) return x;
  const auto flat = static_cast<int>(index % p.seq_q);
  const std::int64_t pair = index / p.seq_q;
  x.head = static_cast<int>(pair % p.heads);
  x.batch = static_cast<int>(pair / p.heads);
  x.constants = index;
  const int document =
      p.documents.q ? document_of(p.documents.q, p.documents.wide_q, p.documents.count, flat) : 0;
  x.live = document >= 0;
  x.at = x.live ? extent_of(p.documents, document, p.seq_q, p.seq_k) : Extent{0, p.seq_q, 0, 0};
  x.row = flat - x.at.q_begin;
  return x;
}

template <class Element>
__global__ void __launch_bounds__(32 * kPlainWarps)
    plain_forward_kernel(const __grid_constant__ Params p) {
  const PlainRow x = query_row(p);
  if (x.row < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, key_head = x.head / p.group;
  const std::int64_t flat = static_cast<std::int64_t>(x.at.q_begin) + x.row;
  float m = tile::negative_infinity(), l = 0, o[kMostColumns] = {};
  if (x.live) {
    const Element* q = p.q.at<const Element>(x.batch, flat, x.head);
    const Range seen = keys_seen(x.at, p.window, x.row, 1);
    for (int first = seen.first; first <= seen.last; first += 32) {
      const int key = first + lane;
      const bool visible = key <= seen.last;
      const std::int64_t row = static_cast<std::int64_t>(x.at.k_begin) + (visible ? key : first);
      const float t = visible
                          ? scored(p, dot(q, p.k.at<const Element>(x.batch, row, key_head), p.d)).t
                          : tile::negative_infinity();
      const float top = fmaxf(m, warp_max(t));
      const float shift = top == tile::negative_infinity() ? 0 : top;
      const float keep = expf(m - shift), e = visible ? expf(t - shift) : 0;
      m = top;
      l = l * keep + warp_sum(e);
      const float weight = visible ? e * kept(p, x.batch, x.head, flat, row) : 0;
      float part[kMostColumns] = {};
      const int count = min(32, seen.last - first + 1);
      for (int j = 0; j < count; ++j) {
        const float w = __shfl_sync(0xffffffffu, weight, j);
        const Element* v = p.v.at<const Element>(
            x.batch, static_cast<std::int64_t>(x.at.k_begin) + first + j, key_head);
#pragma unroll
        for (int c = 0; c < kMostColumns; ++c)
          if (lane + 32 * c < p.d) part[c] = fmaf(w, widened(v[lane + 32 * c]), part[c]);
      }
#pragma unroll
      for (int c = 0; c < kMostColumns; ++c) o[c] = fmaf(o[c], keep, part[c]);
    }
  }
  Element* out = p.o.at<Element>(x.batch, flat, x.head);
#pragma unroll
  for (int c = 0; c < kMostColumns; ++c)
    if (lane + 32 * c < p.d) narrow(out + lane + 32 * c, l > 0 ? o[c] / l : 0);
  if (lane == 0) {
    p.m[x.constants] = m;
    p.l[x.constants] = l;
  }
}

// p and dS (before the factor scale) of one pair.
struct Pair {
  float p, weight, ds;  // weight: p after dropout
};
template <class Element>
__device__ inline Pair pair_of(const Params& p, const Element* q, const Element* k,
                               const Element* v, const Element* d_o, float m, float l, float sum,
                               float mask) {
  const Score s = scored(p, dot(q, k, p.d));
  Pair x;
  x.p = expf(s.t - m) / l;
  x.weight = x.p * mask;
  x.ds = x.p * (mask * dot(d_o, v, p.d) - sum) * s.slope;
  return x;
}

// dQ, and D for the keys' kernel.
template <class Element>
__global__ void __launch_bounds__(32 * kPlainWarps)
    plain_queries_kernel(const __grid_constant__ Params p) {
  const PlainRow x = query_row(p);
  if (x.row < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, key_head = x.head / p.group;
  const std::int64_t flat = static_cast<std::int64_t>(x.at.q_begin) + x.row;
  float dq[kMostColumns] = {};
  if (x.live) {
    const Element* q = p.q.at<const Element>(x.batch, flat, x.head);
    const Element* d_o = p.d_o.at<const Element>(x.batch, flat, x.head);
    const Element* o = p.o.at<const Element>(x.batch, flat, x.head);
    float sum = 0;
    for (int c = lane; c < p.d; c += 32) sum = fmaf(widened(d_o[c]), widened(o[c]), sum);
    sum = warp_sum(sum);
    if (lane == 0) p.sums[x.constants] = sum;
    const float m = p.m[x.constants], l = p.l[x.constants];
    const Range seen = keys_seen(x.at, p.window, x.row, 1);
    for (int first = seen.first; l > 0 && first <= seen.last; first += 32) {
      const int count = min(32, seen.last - first + 1), key = first + min(lane, count - 1);
      const std::int64_t row = static_cast<std::int64_t>(x.at.k_begin) + key;
      const Pair pair = pair_of(p, q, p.k.at<const Element>(x.batch, row, key_head),
                                p.v.at<const Element>(x.batch, row, key_head), d_o, m, l, sum,
                                kept(p, x.batch, x.head, flat, row));
      float part[kMostColumns] = {};
      for (int j = 0; j < count; ++j) {
        const float ds = __shfl_sync(0xffffffffu, pair.ds, j);
        const Element* k = p.k.at<const Element>(
            x.batch, static_cast<std::int64_t>(x.at.k_begin) + first + j, key_head);
#pragma unroll
        for (int c = 0; c < kMostColumns; ++c)
          if (lane + 32 * c < p.d) part[c] = fmaf(ds, widened(k[lane + 32 * c]), part[c]);
      }
#pragma unroll
      for (int c = 0; c < kMostColumns; ++c) dq[c] += part[c];
    }
  }
  Element* out = p.dq.at<Element>(x.batch, flat, x.head);
#pragma unroll
  for (int c = 0; c < kMostColumns; ++c)
    if (lane + 32 * c < p.d) narrow(out + lane + 32 * c, p.scale * dq[c]);
}

// dK and dV: a warp a key row, over the queries of its group's heads.
template <class Element>
__global__ void __launch_bounds__(32 * kPlainWarps)
    plain_keys_kernel(const __grid_constant__ Params p) {
  const std::int64_t index = warp_index();
  if (index >= static_cast<std::int64_t>(p.batch) * p.key_heads * p.seq_k) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto flat = static_cast<int>(index % p.seq_k);
  const std::int64_t pairs = index / p.seq_k;
  const auto key_head = static_cast<int>(pairs % p.key_heads);
  const auto batch = static_cast<int>(pairs / p.key_heads);
  const int document =
      p.documents.k ? document_of(p.documents.k, p.documents.wide_k, p.documents.count, flat) : 0;
  float dk[kMostColumns] = {}, dv[kMostColumns] = {};
  if (document >= 0) {
    const Extent at = extent_of(p.documents, document, p.seq_q, p.seq_k);
    const int key = flat - at.k_begin;
    const Element* k = p.k.at<const Element>(batch, flat, key_head);
    const Element* v = p.v.at<const Element>(batch, flat, key_head);
    const Range seeing = queries_seeing(at, p.window, key, 1);
    for (int head = key_head * p.group; head < (key_head + 1) * p.group; ++head) {
      const std::int64_t constants =
          (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + at.q_begin;
      for (int first = seeing.first; first <= seeing.last; first += 32) {
        const int count = min(32, seeing.last - first + 1), query = first + min(lane, count - 1);
        const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + query;
        const float l = p.l[constants + query];
        Pair pair{0, 0, 0};
        if (l > 0)
          pair = pair_of(p, p.q.at<const Element>(batch, row, head), k, v,
                         p.d_o.at<const Element>(batch, row, head), p.m[constants + query], l,
                         p.sums[constants + query], kept(p, batch, head, row, flat));
        float dk_part[kMostColumns] = {}, dv_part[kMostColumns] = {};
        for (int i = 0; i < count; ++i) {
          const float ds = __shfl_sync(0xffffffffu, pair.ds, i);
          const float weight = __shfl_sync(0xffffffffu, pair.weight, i);
          const std::int64_t r = static_cast<std::int64_t>(at.q_begin) + first + i;
          const Element* q = p.q.at<const Element>(batch, r, head);
          const Element* d_o = p.d_o.at<const Element>(batch, r, head);
#pragma unroll
          for (int c = 0; c < kMostColumns; ++c) {
            if (lane + 32 * c >= p.d) continue;
            dk_part[c] = fmaf(ds, widened(q[lane + 32 * c]), dk_part[c]);
            dv_part[c] = fmaf(weight, widened(d_o[lane + 32 * c]), dv_part[c]);
          }
        }
#pragma unroll
        for (int c = 0; c < kMostColumns; ++c) {
          dk[c] += dk_part[c];
          dv[c] += dv_part[c];
        }
      }
    }
  }
  Element* dk_out = p.dk.at<Element>(batch, flat, key_head);
  Element* dv_out = p.dv.at<Element>(batch, flat, key_head);
#pragma unroll
  for (int c = 0; c < kMostColumns; ++c) {
    if (lane + 32 * c >= p.d) continue;
    narrow(dk_out + lane + 32 * c, p.scale * dk[c]);
    narrow(dv_out + lane + 32 * c, dv[c]);
  }
}

template <class Element>
void launch_plain_forward(const Params& p, CUstream_st* stream) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.seq_q;
  if (rows == 0) return;
  tile::launch(plain_forward_kernel<Element>,
               {(rows + kPlainWarps - 1) / kPlainWarps, 32 * kPlainWarps}, stream, p);
}

template <class Element>
void launch_plain_backward(const Params& p, CUstream_st* stream) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.seq_q;
  const std::int64_t keys = static_cast<std::int64_t>(p.batch) * p.key_heads * p.seq_k;
  if (rows > 0)
    tile::launch(plain_queries_kernel<Element>,
                 {(rows + kPlainWarps - 1) / kPlainWarps, 32 * kPlainWarps}, stream, p);
  if (keys > 0)
    tile::launch(plain_keys_kernel<Element>,
                 {(keys + kPlainWarps - 1) / kPlainWarps, 32 * kPlainWarps}, stream, p);
}

}  // namespace tilefold::attention
