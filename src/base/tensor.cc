#include "base/tensor.h"

namespace tilefold {

namespace {

std::int64_t product_of(const std::int64_t* sizes, int count) {
  std::int64_t n = 1;
  bool fits = true;
  for (int i = 0; i < count; ++i) {
    if (sizes[i] == 0) return 0;
    fits = fits && !__builtin_mul_overflow(n, sizes[i], &n) && n <= kMostElements;
  }
  if (fits) return n;
  std::string text;
  for (int i = 0; i < count; ++i) text += (i ? " x " : "") + std::to_string(sizes[i]);
  throw UsageError(str(text, " is beyond every memory; allowed: up to ", kMostElements));
}

}  // namespace

std::int64_t product(std::initializer_list<std::int64_t> sizes) {
  return product_of(sizes.begin(), static_cast<int>(sizes.size()));
}

Shape::Shape(std::initializer_list<std::int64_t> sizes) : rank(static_cast<int>(sizes.size())) {
  expect(rank <= kMaxRank, "a shape has at most four dimensions");
  int i = 0;
  for (std::int64_t size : sizes) (*this)[i++] = size;
}

std::int64_t Shape::numel() const { return product_of(dims.data(), rank); }

bool Shape::operator==(const Shape& other) const {
  if (rank != other.rank) return false;
  for (int i = 0; i < rank; ++i)
    if ((*this)[i] != other[i]) return false;
  return true;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int i = 0; i < rank; ++i) out += (i ? ", " : "") + std::to_string((*this)[i]);
  return out + "]";
}

Shape dense_strides(const Shape& shape) {
  Shape strides;
  strides.rank = shape.rank;
  std::int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

template <class Void>
bool BasicTensor<Void>::dense() const {
  std::int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

template <class Void>
BasicTensor<Void> BasicTensor<Void>::reshaped(const Shape& to) const {
  expect(dense(), "only a dense view can be reshaped");
  expect(to.numel() == numel(), "reshape keeps the number of elements");
  return BasicTensor(data, dtype, to);
}

template <class Void>
BasicTensor<Void> BasicTensor<Void>::sliced(int dim, std::int64_t begin, std::int64_t count) const {
  expect(dim >= 0 && dim < shape.rank, "slice of a dimension that is not there");
  expect(begin >= 0 && count >= 0 && begin + count <= shape[dim], "slice outside the tensor");
  BasicTensor out = *this;
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  out.data = static_cast<Byte*>(data) + begin * strides[dim] * size_of(dtype);
  out.shape[dim] = count;
  return out;
}

template struct BasicTensor<void>;
template struct BasicTensor<const void>;

}  // namespace tilefold
