// Rows of user tensors, in any storage type and stride, to and from the dense float (double) tiles
// that the kernels work on. Only rows named here are read: what lies beside them may be anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "base/tensor.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {

// Rows of one head: [seq, d], last stride 1.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  T* operator[](std::int64_t i) const { return data + i * stride; }
};

template <class T, class Void>
auto rows_of(const BasicTensor<Void>& x, std::int64_t batch, std::int64_t head) {
  auto* data = x.template as<T>();
  return Rows<std::remove_pointer_t<decltype(data)>>{
      data + batch * x.strides[0] + head * x.strides[2], x.strides[1]};
}

inline void widen(const float* x, float* y, std::int64_t count) {
  std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(float));
}
inline void widen(const double* x, double* y, std::int64_t count) {
  std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(double));
}
inline void widen(const bf16* x, float* y, std::int64_t count) {
  storage_kernels().widen_bf16(&x->bits, y, count);
}
inline void widen(const f16* x, float* y, std::int64_t count) {
  storage_kernels().widen_f16(&x->bits, y, count);
}

// y[n][c] = x[first + n][c]; y dense [rows][d].
template <class T, class Real>
void load_rows(Rows<const T> x, std::int64_t first, std::int64_t rows, std::int64_t d, Real* y) {
  if (x.stride == d) return widen(x[first], y, rows * d);
  for (std::int64_t n = 0; n < rows; ++n) widen(x[first + n], y + n * d, d);
}

// Rows [first, first + rows) as dense Reals: where they lie if they lie so, else copied to `copy`
// [rows][d]. (Read in place with a stride of 2 KiB, products lose 6%: rows share cache sets.)
template <class T, class Real>
Rows<const Real> rows_in_place(Rows<const T> x, std::int64_t first, std::int64_t rows,
                               std::int64_t d, Real* copy) {
  if constexpr (std::is_same_v<T, Real>)
    if (x.stride == d) return {x[first], d};
  load_rows(x, first, rows, d, copy);
  return {copy, d};
}

// Rows [first, first + rows) become columns of panels of 32: y[n / 32][c][n % 32] = factor x[n][c],
// 0 behind the last row. `wide` [32][d] is scratch.
template <class T, class Real>
void load_panels(const TileKernels<Real>& kernels, Rows<const T> x, std::int64_t first,
                 std::int64_t rows, std::int64_t d, Real factor, Real* wide, Real* y) {
  for (std::int64_t n = 0; n < rows; n += kPanel) {
    const std::int64_t count = rows - n < kPanel ? rows - n : kPanel;
    if constexpr (std::is_same_v<T, Real>) {
      kernels.to_panel(x[first + n], x.stride, count, d, factor, y + n * d);
    } else {
      load_rows(x, first + n, count, d, wide);
      kernels.to_panel(wide, d, count, d, factor, y + n * d);
    }
  }
}

// The way back: y[first + n][c] = x[n / 32][c][n % 32] / divisor[n], 0 where divisor is 0.
template <class T, class Real>
void store_panels(const TileKernels<Real>& kernels, const Real* x, std::int64_t d,
                  const Real* divisor, Rows<T> y, std::int64_t first, std::int64_t rows,
                  Real* wide) {
  for (std::int64_t n = 0; n < rows; n += kPanel) {
    const std::int64_t count = rows - n < kPanel ? rows - n : kPanel;
    if constexpr (std::is_same_v<T, Real>) {
      kernels.from_panel(x + n * d, d, divisor + n, count, y[first + n], y.stride);
    } else {
      kernels.from_panel(x + n * d, d, divisor + n, count, wide, d);
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t c = 0; c < d; ++c) y[first + n + r][c] = T(wide[r * d + c]);
    }
  }
}

template <class T>
void zero_rows(Rows<T> x, std::int64_t first, std::int64_t end, std::int64_t d) {
  for (std::int64_t n = first; n < end; ++n)
    for (std::int64_t c = 0; c < d; ++c) x[n][c] = T(0);
}

}  // namespace tilefold::cpu
