#include "tests/cpu/attention/poisoned_array.h"

#include <algorithm>
#include <cstring>

namespace tilefold::test {
namespace {

// Elements of NaN before and after an array; odd on purpose.
std::int64_t margin_of(Layout layout) { return layout == Layout::aligned ? 64 : 67; }

double load(const void* at, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(at)[index];
    case DType::bf16:
      return static_cast<const bf16*>(at)[index];
    case DType::f16:
      return static_cast<const f16*>(at)[index];
    default:
      return static_cast<const double*>(at)[index];
  }
}

void save(void* at, DType dtype, std::int64_t index, double x) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(at)[index] = static_cast<float>(x);
      return;
    case DType::bf16:
      static_cast<bf16*>(at)[index] = bf16(static_cast<float>(x));
      return;
    case DType::f16:
      static_cast<f16*>(at)[index] = f16(static_cast<float>(x));
      return;
    default:
      static_cast<double*>(at)[index] = x;
  }
}

// Calls f(row-major index, offset in elements) for each element.
template <class F>
void for_each_element(const Tensor& x, F&& f) {
  std::int64_t dense = 0;
  for (std::int64_t a = 0; a < x.shape[0]; ++a)
    for (std::int64_t b = 0; b < x.shape[1]; ++b)
      for (std::int64_t c = 0; c < x.shape[2]; ++c)
        for (std::int64_t e = 0; e < x.shape[3]; ++e)
          f(dense++, a * x.strides[0] + b * x.strides[1] + c * x.strides[2] + e * x.strides[3]);
}

Shape strides_of(const Shape& s, Layout layout) {
  switch (layout) {
    case Layout::dense:
      return dense_strides(s);
    case Layout::padded: {
      const std::int64_t head = s[3] + 3, row = s[2] * head + 5, batch = s[1] * row + 7;
      return {batch, row, head, 1};
    }
    case Layout::aligned: {
      const std::int64_t head = (s[3] + 7) / 8 * 8 + 8, row = s[2] * head + 8,
                         batch = s[1] * row + 16;
      return {batch, row, head, 1};
    }
    case Layout::heads_outer: {
      const std::int64_t row = s[3] + 1, head = s[1] * row, batch = s[2] * head;
      return {batch, row, head, 1};
    }
  }
  return {};
}

}  // namespace

double rounded(double x, DType dtype) {
  save(&x, dtype, 0, x);
  return load(&x, dtype, 0);
}

Array::Array(DType dtype, const Shape& shape, Layout layout) {
  Shape s = shape;
  const Shape strides = strides_of(s, layout);
  std::int64_t extent = 1;
  for (int i = 0; i < 4; ++i) extent += (std::max<std::int64_t>(s[i], 1) - 1) * strides[i];
  margin_ = margin_of(layout);
  elements_ = extent + 2 * margin_;
  memory_.assign(static_cast<std::size_t>((elements_ * size_of(dtype) + 7) / 8), ~std::uint64_t{0});
  void* data = reinterpret_cast<char*>(memory_.data()) + margin_ * size_of(dtype);
  view_ = Tensor(data, dtype, s, strides);
}

void Array::set(const std::vector<double>& dense) {
  for_each_element(view_, [&](std::int64_t i, std::int64_t at) {
    save(view_.data, view_.dtype, at, dense[static_cast<std::size_t>(i)]);
  });
}

std::vector<double> Array::get() const {
  std::vector<double> dense(static_cast<std::size_t>(view_.numel()));
  for_each_element(view_, [&](std::int64_t i, std::int64_t at) {
    dense[static_cast<std::size_t>(i)] = load(view_.data, view_.dtype, at);
  });
  return dense;
}

bool Array::surroundings_untouched() const {
  const std::size_t size = static_cast<std::size_t>(size_of(view_.dtype));
  std::vector<std::uint64_t> copy = memory_;
  unsigned char* data =
      reinterpret_cast<unsigned char*>(copy.data()) + margin_ * size_of(view_.dtype);
  for_each_element(view_, [&](std::int64_t, std::int64_t at) {
    std::memset(data + at * size_of(view_.dtype), kPoison, size);
  });
  return std::all_of(copy.begin(), copy.end(), [](std::uint64_t x) { return ~x == 0; });
}

}  // namespace tilefold::test
