// From a floating dtype to its C++ type.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

namespace tilefold {

template <class T>
struct Type {
  using type = T;
};

// body(Type<T>{}) with T the element type of a floating dtype; an Error for an integer one.
template <class Body>
void for_float_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::f64:
      return body(Type<double>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::f16:
      return body(Type<f16>{});
    default:
      expect(false, "an integer dtype where a floating one was checked for");
  }
}

}  // namespace tilefold
