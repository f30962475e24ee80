// What lies between the products of the portable kernels, on a warp's 16 rows of a fragment: units,
// softcap, masks, the softmax recurrence, dropout, and the way out.
//
// Scores of 16-bit types stay as the product left them until the exponential takes them times
// `unit`; float32 scores are brought to natural units first and take the accurate exponential.
#pragma once

#include <type_traits>

#include "kernels/attention/params.cuh"
#include "kernels/tile/softmax.cuh"
#include "kernels/tile/warp_product.cuh"

namespace tilefold::attention {

using tile::Fragment;

// What a score in registers is multiplied by to be in natural units, after to_scores().
template <class Element>
__device__ __forceinline__ float unit_of(const Params& p) {
  return std::is_same_v<Element, float> || p.softcap > 0 ? 1.f : p.scale;
}

template <class Element, int kColumns>
__device__ __forceinline__ void to_scores(Fragment<kColumns>& s, const Params& p) {
  if (p.softcap > 0) {
    const float inner = p.scale / p.softcap;
#pragma unroll
    for (int r = 0; r < s.kCount; ++r) {
      const float t = std::is_same_v<Element, float> ? tanhf(s.x[r] * p.scale / p.softcap)
                                                     : tile::tanh_accurate(s.x[r] * inner);
      s.x[r] = p.softcap * t;
    }
  } else if (std::is_same_v<Element, float>) {
    s.scale(p.scale);
  }
}

// e to the x, x at most 0.
template <class Element>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<Element, float>) return expf(x);
  return ptx::exp2(x * tile::kLog2e);
}

// Hides what query rows `row` and `row` + 8 of this thread do not see of the keys from first_key
// on.
template <int kColumns>
__device__ __forceinline__ void hide_keys(Fragment<kColumns>& s, const Extent& at,
                                          const Diagonal& g, int upper, int lower, int first_key) {
  const int last = at.k_count - 1 - first_key;
  const int a = upper + g.off - first_key, b = lower + g.off - first_key;
  tile::hide_after(s, min(a + g.right, last), min(b + g.right, last));
  tile::hide_before(s, a - g.left, b - g.left);
}

// The same where rows are keys and columns the queries from first_query on.
template <int kColumns>
__device__ __forceinline__ void hide_queries(Fragment<kColumns>& s, const Extent& at,
                                             const Diagonal& g, int upper, int lower,
                                             int first_query) {
  const int last = at.q_count - 1 - first_query;
  const int a = upper - g.off - first_query, b = lower - g.off - first_query;
  tile::hide_after(s, min(a + g.left, last), min(b + g.left, last));
  tile::hide_before(s, a - g.right, b - g.right);
}

// RowFold::fold of tile/softmax.cuh, and the same with the accurate exponential for float32.
template <class Element, int kColumns>
__device__ __forceinline__ void fold(tile::RowFold& rows, Fragment<kColumns>& s, float unit,
                                     float (&keep)[2]) {
  if constexpr (!std::is_same_v<Element, float>) {
    rows.fold(s, unit * tile::kLog2e, keep);
  } else {
    float top[2] = {rows.m[0], rows.m[1]}, sum[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < s.kCount; ++r) top[s.is_lower(r)] = fmaxf(top[s.is_lower(r)], s.x[r]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = tile::quad_max(top[i]);
      const float shift = top[i] == tile::negative_infinity() ? 0 : top[i];
      keep[i] = expf(rows.m[i] - shift);
      rows.m[i] = top[i];
      top[i] = shift;
    }
#pragma unroll
    for (int r = 0; r < s.kCount; ++r) {
      s.x[r] = expf(s.x[r] - top[s.is_lower(r)]);
      sum[s.is_lower(r)] += s.x[r];
    }
    rows.l[0] = rows.l[0] * keep[0] + sum[0];
    rows.l[1] = rows.l[1] * keep[1] + sum[1];
  }
}

// Dropout's factors, 0 or 1 / (1 - p), as contract/dropout.h says. Queries and keys are rows of the
// batch element, not of the document.
class Keep {
 public:
  __device__ Keep(const Params& p, int batch, int head)
      : any_(p.dropout.p > 0), packed_(p.documents.q != nullptr), batch_(batch) {
    if (!any_) return;
    key_ = dropout_key(p.dropout.state->seed, p.dropout.state->step);
    first_sample_ = p.dropout.state->first_sample;
    period_ = static_cast<std::uint32_t>(least(p.dropout.rows_per_sample, 1ll << 31));
    site_ = p.dropout.site;
    head_ = static_cast<std::uint32_t>(head);
    threshold_ = dropout_threshold(p.dropout.p);
    kept_ = 1 / (1 - p.dropout.p);
  }
  __device__ bool any() const { return any_; }
  // Keys of packed documents need not start at a multiple of four.
  __device__ bool packed() const { return packed_; }

  // Of keys 4 (key / 4) .. + 3, a bit each, from one call of the random function. Not packed.
  __device__ std::uint32_t four(int query, int key) const {
    const Philox::Words words = of(first_sample_ + batch_, static_cast<std::uint32_t>(query),
                                   static_cast<std::uint32_t>(key));
    return (words[0] >= threshold_ ? 1u : 0u) | (words[1] >= threshold_ ? 2u : 0u) |
           (words[2] >= threshold_ ? 4u : 0u) | (words[3] >= threshold_ ? 8u : 0u);
  }

  // Of keys `key` and `key` + 1.
  __device__ float2 pair(int query, int key) const {
    auto position = static_cast<std::uint32_t>(query);
    std::int64_t sample = first_sample_ + batch_;
    std::uint32_t a = static_cast<std::uint32_t>(key), b = a + 1;
    if (packed_) {
      sample = first_sample_ + position / period_;
      position %= period_;
      a %= period_;
      b %= period_;
    }
    const Philox::Words words = of(sample, position, a);
    const float first = factor(words, a);
    if (a / 4 == b / 4) return make_float2(first, factor(words, b));
    return make_float2(first, factor(of(sample, position, b), b));
  }
  // Of what is kept: 1 / (1 - p), 1 without dropout.
  __device__ float factor() const { return kept_; }

 private:
  __device__ Philox::Words of(std::int64_t sample, std::uint32_t position,
                              std::uint32_t key) const {
    return attention_dropout_words(key_, static_cast<std::uint64_t>(sample), site_, head_, position,
                                   key);
  }
  __device__ float factor(const Philox::Words& words, std::uint32_t key) const {
    const std::uint32_t low = key % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high = key % 2 == 0 ? words[2] : words[3];
    return (key % 4 < 2 ? low : high) >= threshold_ ? kept_ : 0.f;
  }

  bool any_, packed_;
  int batch_;
  std::uint64_t key_ = 0;
  std::int64_t first_sample_ = 0;
  std::uint32_t period_ = 1, site_ = 0, head_ = 0, threshold_ = 0;
  float kept_ = 1;
};

// Scores by dropout's factors: a thread's rows are queries `upper` and `lower`, each with its
// head's factors, columns the keys from first_key on.
template <int kColumns>
__device__ __forceinline__ void drop(Fragment<kColumns>& s, const Keep& of_upper,
                                     const Keep& of_lower, int upper, int lower, int first_key) {
#pragma unroll 1
  for (int j = 0; j < kColumns; j += 8) {
    const int key = first_key + j + tile::first_column();
    const float2 a = of_upper.pair(upper, key), b = of_lower.pair(lower, key);
#pragma unroll
    for (int r = 0; r < s.kCount; ++r)  // registers are not indexed at run time
      if (r / 4 * 8 == j) s.x[r] *= r % 4 == 0 ? a.x : r % 4 == 1 ? a.y : r % 4 == 2 ? b.x : b.y;
  }
}

// kept_pairs(), a call of the random function a pair.
template <int kColumns, bool kTransposed>
__device__ __forceinline__ std::uint32_t kept_pairs_one_by_one(const Keep& keep, int upper,
                                                               int first) {
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int r = 0; r < Fragment<kColumns>::kCount; ++r) {
    const int column = first + Fragment<kColumns>::column(r) + tile::first_column();
    const int row = upper + (Fragment<kColumns>::is_lower(r) ? 8 : 0);
    if (keep.pair(kTransposed ? column : row, kTransposed ? row : column).x > 0) bits |= 1u << r;
  }
  return bits;
}

// Which of a thread's pairs dropout keeps, bit r for register r. Rows are queries `upper` and + 8,
// columns the keys from `first` on; transposed: rows are keys, columns queries. Four keys share a
// call of the random function; the lanes that have them share out the calls.
// REQUIRES: the whole warp is here; unless packed, upper - lane / 4 and `first` are multiples of 4.
template <int kColumns, bool kTransposed>
__device__ __forceinline__ std::uint32_t kept_pairs(const Keep& keep, int upper, int first) {
  static_assert(Fragment<kColumns>::kCount <= 32);
  if (keep.packed()) return kept_pairs_one_by_one<kColumns, kTransposed>(keep, upper, first);
  const int lane = tile::lane(), column = first + tile::first_column();
  std::uint32_t mine = 0;  // four bits a call, of every eighth column
  if constexpr (kTransposed) {
    // Lanes 4 apart have the four keys of a group; each calls for one of every four registers.
    const int turn = lane / 4 % 4, key = upper + (turn >= 2 ? 8 : 0);
#pragma unroll 2
    for (int c = 0; c < kColumns / 8; ++c)
      mine |= keep.four(column + turn % 2 + 8 * c, key) << 4 * c;
    std::uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::uint32_t of_register = __shfl_sync(0xffffffffu, mine, (lane & ~12) | r << 2);
      bits |= (of_register >> turn & 0x11111111u) << r;
    }
    return bits;
  } else {
    // Neighbours have two keys each of a group, in two rows; each calls for one row.
    const bool odd = lane % 2 == 1;
#pragma unroll 2
    for (int c = 0; c < kColumns / 8; ++c)
      mine |= keep.four(upper + (odd ? 8 : 0), column + 8 * c) << 4 * c;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, mine, 1);
    const std::uint32_t above = odd ? other : mine, below = odd ? mine : other;
    const int shift = odd ? 2 : 0;
    return (above >> shift & 0x33333333u) | (below >> shift & 0x33333333u) << 2;
  }
}

// Scores by dropout's factors: rows are queries `upper` and + 8 of one head. REQUIRES:
// kept_pairs().
template <int kColumns>
__device__ __forceinline__ void drop(Fragment<kColumns>& s, const Keep& keep, int upper,
                                     int first_key) {
  const std::uint32_t kept = kept_pairs<kColumns, false>(keep, upper, first_key);
#pragma unroll
  for (int r = 0; r < s.kCount; ++r) s.x[r] *= (kept >> r & 1) != 0 ? keep.factor() : 0.f;
}

// t, in natural units, and p of a score; hidden ones are -inf and give 0.
template <class Element>
__device__ __forceinline__ float probability(float t, float m, float inverse_l) {
  return exponential<Element>(fminf(t - m, 0)) * inverse_l;
}
// 1 - (t / softcap)^2; 0 where hidden.
__device__ __forceinline__ float slope_of(float t, float inverse_softcap) {
  const float x = t * inverse_softcap;
  return t == tile::negative_infinity() ? 0 : 1 - x * x;
}

// The warp's first `count` rows, columns below d, to rows `stride` apart; pairs: two neighbours may
// be stored at once.
template <class To, int kColumns>
__device__ __forceinline__ void store_rows(const Fragment<kColumns>& x, To* to, std::int64_t stride,
                                           int count, int d, bool pairs) {
  const int upper = tile::lane() / 4;
#pragma unroll
  for (int r = 0; r < x.kCount; r += 2) {
    const int row = upper + (x.is_lower(r) ? 8 : 0), column = x.column(r) + tile::first_column();
    if (row >= count || column >= d) continue;
    To* at = to + row * stride + column;
    if (pairs) {
      narrow_pair(at, x.x[r], x.x[r + 1]);
    } else {
      narrow(at, x.x[r]);
      if (column + 1 < d) narrow(at + 1, x.x[r + 1]);
    }
  }
}

}  // namespace tilefold::attention
