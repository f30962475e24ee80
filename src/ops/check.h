// Checks at the doors of the ops: each throws Error "OP: ARGUMENT is/has VALUE; allowed ..." before
// anything runs. Nothing is allocated unless a check fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/tensor.h"
#include "contract/dropout.h"

namespace tilefold::ops {

class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  // A tensor that must be there, dense, of this shape; dims: its names, "[tokens, width]".
  void dense(const char* name, const ConstTensor& t, const Shape& shape, const char* dims) const;
  // As dense, but rows may be strided (last stride 1, rows not overlapping). shape has rank 2.
  void rows(const char* name, const ConstTensor& t, const Shape& shape, const char* dims) const;
  // Rank and sizes of at least 1 but for the first, which may be 0: where the other shapes come
  // from.
  void leads(const char* name, const ConstTensor& t, int rank, const char* dims) const;

  void dtype(const char* name, const ConstTensor& t, DType allowed) const;
  void dtype(const char* name, const ConstTensor& t, DType allowed, DType or_allowed) const;
  void floating(const char* name, const ConstTensor& t) const;  // f32, bf16, f16 or f64
  void absent(const char* name, const ConstTensor& t, const char* when) const;
  void present(const char* name, const ConstTensor& t, const char* when) const;

  void workspace(std::span<const std::byte> workspace, std::int64_t bytes) const;
  void dropout(const Dropout& dropout, std::int64_t rows) const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void shape(const char* name, const ConstTensor& t, const Shape& shape, const char* dims) const;
  const char* op_;
};

}  // namespace tilefold::ops
