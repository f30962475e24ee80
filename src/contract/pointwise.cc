#include "contract/pointwise.h"

#include <cmath>

namespace tilefold {
namespace {

template <class T>
void fill_table(std::int64_t context, std::int64_t d, double base, T* table) {
  for (std::int64_t c = 0; c < d / 2; ++c) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(d));
    for (std::int64_t i = 0; i < context; ++i) {
      const double angle = static_cast<double>(i) * frequency;
      table[i * d + c] = static_cast<T>(std::cos(angle));
      table[i * d + d / 2 + c] = static_cast<T>(std::sin(angle));
    }
  }
}

}  // namespace

void make_rope_table(std::int64_t context, std::int64_t d, double base, Tensor table) {
  require(d > 0 && d % 2 == 0, "make_rope_table: d is ", d, "; an even width above 0 is needed");
  require(std::isfinite(base) && base > 0, "make_rope_table: base is ", base,
          "; a finite value above 0 is needed");
  require(table.shape == Shape{context, d} && table.dense(),
          "make_rope_table: table has another shape than [", context, ", ", d, "]");
  if (table.dtype == DType::f64) {
    fill_table(context, d, base, table.as<double>());
  } else {
    require(table.dtype == DType::f32, "make_rope_table: table is ", name_of(table.dtype),
            "; allowed: f32, f64");
    fill_table(context, d, base, table.as<float>());
  }
}

}  // namespace tilefold
