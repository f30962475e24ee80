// An array in memory full of NaN: in the gaps between its rows, before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"

namespace tilefold::test {

constexpr unsigned char kPoison = 0xff;  // all ones is a NaN in every float type

// x as the dtype stores it.
double rounded(double x, DType dtype);

enum class Layout : std::uint8_t {
  dense,        // [batch, seq, heads, d]
  padded,       // the same with gaps after rows of every dimension, from an odd address
  heads_outer,  // [batch, heads, seq, d + 1]
  aligned,      // gaps as in padded, but addresses and strides are multiples of 16 bytes
};

// Rank 4.
class Array {
 public:
  Array(DType dtype, const Shape& shape, Layout layout);
  Tensor view() { return view_; }
  void set(const std::vector<double>& dense);  // row-major
  std::vector<double> get() const;             // row-major
  bool surroundings_untouched() const;
  // All of it, to be copied to a device and back.
  std::span<std::byte> memory() { return std::as_writable_bytes(std::span(memory_)); }

 private:
  std::vector<std::uint64_t> memory_;
  std::int64_t elements_ = 0, margin_ = 0;
  Tensor view_;
};

}  // namespace tilefold::test
