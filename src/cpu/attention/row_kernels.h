// The inner loops of attention for single query rows, with vector lanes along the keys (dots,
// soften, fold) or the head width (weigh). One table per instruction set, as in tile_kernels.h.
#pragma once

#include <cstdint>

namespace tilefold::cpu {

template <class Real>
struct RowKernels {
  // s[j] = sum_c q[c] k[j * k_row + c], j < keys; to the bit what TileKernels::products makes of
  // them (backward makes the scores again with those, and one ulp of a huge score is a lot)
  void (*dots)(const Real* q, const Real* k, std::int64_t k_row, std::int64_t keys, std::int64_t d,
               Real* s);
  // s = cap * tanh(s / cap)
  void (*soften)(Real* s, std::int64_t keys, Real cap);
  // The softmax recurrence: s becomes exp(s - m_new), with m_new = max(m, max s), l rescaled and
  // added to; returns exp(m - m_new). REQUIRES: some s above -inf.
  Real (*fold)(Real* s, std::int64_t keys, Real* m, Real* l);
  // o[c] = factor * o[c] + sum_j p[j] v[j * v_row + c]
  void (*weigh)(const Real* p, const Real* v, std::int64_t v_row, std::int64_t keys, std::int64_t d,
                Real factor, Real* o);
};

namespace baseline {
extern const RowKernels<float> kFloatRows;
extern const RowKernels<double> kDoubleRows;
}  // namespace baseline
namespace avx2 {
extern const RowKernels<float> kFloatRows;
extern const RowKernels<double> kDoubleRows;
}  // namespace avx2
namespace avx512 {
extern const RowKernels<float> kFloatRows;
extern const RowKernels<double> kDoubleRows;
}  // namespace avx512

// The best table for this machine.
template <class Real>
const RowKernels<Real>& row_kernels();

}  // namespace tilefold::cpu
