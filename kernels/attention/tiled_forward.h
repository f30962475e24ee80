// Launchers of the portable forward kernels, one instance an element type and padded width.
#pragma once

struct CUstream_st;

namespace tilefold::attention {

struct Params;
struct Partials;

// REQUIRES: d <= kWidth; params.cuh filled with the kernel's tiles. With more than one part,
// results are partial: launch_combine() follows.
template <class Element, int kWidth, int kRows>
void launch_tiled_forward(const Params& p, const Partials& parts, CUstream_st* stream);
template <class Element, int kWidth>
void launch_decode(const Params& p, const Partials& parts, CUstream_st* stream);
template <class Element>
void launch_combine(const Params& p, const Partials& parts, CUstream_st* stream);

}  // namespace tilefold::attention
