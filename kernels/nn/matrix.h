// Matrix products through cuBLASLt, row-major:
//   C[m, n] = A[m, k] B[k, n] (+ C if accumulate) (+ bias[n] on every row)
// Products of float32 are float32 throughout (no TF32); those of 16-bit types are summed in
// float32. The algorithm is the library's first choice for the shape, strides and 16-byte
// alignment, asked once and kept, so that a product has the same bits every time; its workspace is
// the caller's.
//
// Plain C++: needs the CUDA headers, not its compiler. Not thread-safe; one for each stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/device_info.h"
#include "base/dtype.h"

struct CUstream_st;

namespace tilefold::nn {

// A row-major array; `transposed`: it holds the operand's transpose.
struct Operand {
  const void* data = nullptr;
  std::int64_t row = 0;  // elements from one row to the next
  bool transposed = false;
};

struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Operand a;          // [m, k] of dtype; transposed: [k, m]
  Operand b;          // [k, n] of dtype; transposed: [n, k]
  void* c = nullptr;  // [m, n] of c_dtype
  std::int64_t c_row = 0;
  DType dtype = DType::f32;    // f32, bf16, f16
  DType c_dtype = DType::f32;  // dtype, or f32
  bool accumulate = false;
  const void* bias = nullptr;  // [n] of dtype, or null. REQUIRES: c_dtype == dtype
};

class MatrixLibrary {
 public:
  explicit MatrixLibrary(const DeviceInfo& device);
  ~MatrixLibrary();
  MatrixLibrary(const MatrixLibrary&) = delete;
  MatrixLibrary& operator=(const MatrixLibrary&) = delete;

  // workspace: matrix_library_workspace() bytes. Throws Error naming the shape where the library
  // has no algorithm.
  void multiply(const Product& product, std::span<std::byte> workspace, CUstream_st* stream);

 private:
  struct Plan;
  using Key = std::array<std::int64_t, 8>;
  const Plan& plan(const Product& product);

  DeviceInfo device_;
  void* handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace tilefold::nn
