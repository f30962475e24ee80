// Shapes and strided views. A view owns nothing; sizes, strides and offsets are 64-bit.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"

namespace tilefold {

constexpr int kMaxRank = 4;

// More than any memory has, and few enough that bytes and sums of a few sizes stay in 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

// The sizes multiplied. Throws UsageError naming them when that is beyond kMostElements.
std::int64_t product(std::initializer_list<std::int64_t> sizes);

struct Shape {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> dims{};

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  std::int64_t operator[](int i) const { return dims[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dims[static_cast<std::size_t>(i)]; }
  std::int64_t numel() const;  // UsageError beyond kMostElements
  bool operator==(const Shape& other) const;
  std::string text() const;  // "[2, 5, 4, 64]"
};

// Strides, in elements, of a dense row-major array of this shape.
Shape dense_strides(const Shape& shape);

// A strided view of an array. Void is `void` or `const void`. Default: empty (data null, rank 0).
template <class Void>
struct BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Shape strides;  // in elements; rank equals shape.rank

  BasicTensor() = default;
  BasicTensor(Void* data_, DType dtype_, const Shape& shape_)
      : data(data_), dtype(dtype_), shape(shape_), strides(dense_strides(shape_)) {}
  BasicTensor(Void* data_, DType dtype_, const Shape& shape_, const Shape& strides_)
      : data(data_), dtype(dtype_), shape(shape_), strides(strides_) {}
  // A mutable view converts to a const one.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicTensor(const BasicTensor<Other>& other)
      : data(other.data), dtype(other.dtype), shape(other.shape), strides(other.strides) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t numel() const { return shape.numel(); }
  std::int64_t bytes() const { return numel() * size_of(dtype); }  // of its elements
  bool dense() const;

  // The elements as T; a bug of ours if the dtype differs.
  template <class T>
  auto* as() const {
    expect(dtype == dtype_of<T>(), "tensor read as another dtype");
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data);
  }

  // Same elements in another shape. REQUIRES: dense(), equal numel.
  BasicTensor reshaped(const Shape& to) const;
  // Indices [begin, begin + count) of dimension `dim`.
  BasicTensor sliced(int dim, std::int64_t begin, std::int64_t count) const;
};

using Tensor = BasicTensor<void>;
using ConstTensor = BasicTensor<const void>;

extern template struct BasicTensor<void>;
extern template struct BasicTensor<const void>;

}  // namespace tilefold
