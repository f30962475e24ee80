// Gradients from their parts (GradientParts), a warp a row, added in order: bits repeat.
#pragma once

#include "kernels/attention/params.cuh"
#include "kernels/attention/tiled_backward.h"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace tilefold::attention {

constexpr int kAddWarps = 8;

// Row `row` of [batch, seq, heads] from [parts, rows, d] to a tensor. Rows after the last document
// were cleared and have no parts.
template <class Element>
__device__ inline void add_row(const Params& p, const Strided& to, const float* from, int parts,
                               std::int64_t rows, std::int64_t row, std::int64_t seq, int heads,
                               const void* offsets, bool wide) {
  const std::int64_t flat = row / heads % seq;
  if (offsets != nullptr && flat >= offset_at(offsets, wide, p.documents.count)) return;
  Element* const out =
      to.at<Element>(static_cast<int>(row / heads / seq), flat, static_cast<int>(row % heads));
  for (int c = tile::lane(); c < p.d; c += 32) {
    float sum = 0;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) sum += from[(part * rows + row) * p.d + c];
    narrow(out + c, sum);
  }
}

template <class Element>
__global__ void __launch_bounds__(32 * kAddWarps)
    add_parts_kernel(const __grid_constant__ Params p, const __grid_constant__ GradientParts x) {
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kAddWarps + threadIdx.x / 32;
  const Documents& documents = p.documents;
  if (row < x.query_rows)
    return add_row<Element>(p, p.dq, x.dq, x.parts, x.query_rows, row, p.seq_q, p.heads,
                            documents.q, documents.wide_q);
  row -= x.query_rows;
  const bool values = row >= x.key_rows;
  if (values) row -= x.key_rows;
  if (row < x.key_rows)
    add_row<Element>(p, values ? p.dv : p.dk, values ? x.dv : x.dk, x.parts, x.key_rows, row,
                     p.seq_k, p.key_heads, documents.k, documents.wide_k);
}

template <class Element>
void launch_add_parts(const Params& p, const GradientParts& parts, CUstream_st* stream) {
  const std::int64_t rows = parts.query_rows + 2 * parts.key_rows;
  if (rows == 0) return;
  tile::launch(add_parts_kernel<Element>, {(rows + kAddWarps - 1) / kAddWarps, 32 * kAddWarps},
               stream, p, parts);
}

}  // namespace tilefold::attention
