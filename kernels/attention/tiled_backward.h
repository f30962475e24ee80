// Launchers of the portable backward kernels, one instance an element type and padded width.
#pragma once

struct CUstream_st;

namespace tilefold::attention {

struct GradientParts;
struct Params;

// params.sums[row] = dO . O of each row that belongs to a document.
template <class Element>
void launch_sums(const Params& p, CUstream_st* stream);
// dQ, dK and dV, or the parts of them; sums and the row constants are read. REQUIRES: d <= kWidth.
template <class Element, int kWidth>
void launch_tiled_backward(const Params& p, const GradientParts& parts, CUstream_st* stream);
// dQ, dK and dV from their parts, added in order.
template <class Element>
void launch_add_parts(const Params& p, const GradientParts& parts, CUstream_st* stream);

}  // namespace tilefold::attention
