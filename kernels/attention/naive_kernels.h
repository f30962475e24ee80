// Parameters and launchers of the naive kernels, one instance an element type and padded width.
#pragma once

#include "kernels/attention/params.cuh"

struct CUstream_st;

namespace tilefold::attention {

// Matrices [chunk, rows, row] of the element type.
struct Matrices {
  void* data;
  std::int64_t pair, row;  // strides in elements
  bool vector;             // rows of 16-byte chunks
  template <class Element>
  __device__ Element* at(std::int64_t chunk_pair) const {
    return static_cast<Element*>(data) + chunk_pair * pair;
  }
};

// The heads first_pair .. + pairs - 1 of (sequence, head).
struct NaiveParams {
  Params p;
  Matrices probabilities, ds;
  float2* stats;  // [chunk, tiles of keys, max_rows]  m and l of a tile's row
  std::int64_t max_rows;
  int first_pair, pairs;
  bool kept;  // probabilities are the caller's: forward leaves them, backward finds them
};

// out = factor left right, or factor leftᵀ right.
struct NaiveProduct {
  Matrices left;
  Strided right, out;
  float factor;
  bool drops;  // left by dropout's factors first
};

template <class Element, int kWidth>
void launch_naive_scores(const NaiveParams& x, bool backward, CUstream_st* stream);
// 16 bits, kWidth to 128, up to 256 keys.
template <class Element, int kWidth>
void launch_naive_fused(const NaiveParams& x, CUstream_st* stream);
template <class Element>
void launch_naive_softmax(const NaiveParams& x, CUstream_st* stream);
template <class Element, int kWidth>
void launch_naive_product(const NaiveParams& x, const NaiveProduct& y, bool columns,
                          CUstream_st* stream);

}  // namespace tilefold::attention
