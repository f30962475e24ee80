#include "ops/check.h"

#include <cstdint>

namespace tilefold::ops {

void Check::fail(const std::string& what) const { throw Error(str(op_, ": ", what)); }

void Check::shape(const char* name, const ConstTensor& t, const Shape& shape,
                  const char* dims) const {
  if (!(t.shape == shape))
    fail(str(name, " has shape ", t.shape.text(), "; ", dims, " = ", shape.text(), " is needed"));
  if (t.data == nullptr && t.numel() != 0)
    fail(str(name, " is empty; ", dims, " = ", shape.text(), " is needed"));
}

void Check::dense(const char* name, const ConstTensor& t, const Shape& wanted,
                  const char* dims) const {
  shape(name, t, wanted, dims);
  if (!t.dense() && t.numel() != 0)
    fail(str(name, " has strides ", t.strides.text(), "; a dense ", dims, " is needed"));
}

void Check::rows(const char* name, const ConstTensor& t, const Shape& wanted,
                 const char* dims) const {
  shape(name, t, wanted, dims);
  const bool packed = t.shape[1] == 1 || t.strides[1] == 1;
  if (t.numel() != 0 && (!packed || (t.shape[0] > 1 && t.strides[0] < t.shape[1])))
    fail(str(name, " has strides ", t.strides.text(), "; rows ", dims,
             " with last stride 1 that do not overlap are needed"));
}

void Check::leads(const char* name, const ConstTensor& t, int rank, const char* dims) const {
  if (t.shape.rank != rank)
    fail(str(name, " has shape ", t.shape.text(), "; ", dims, " is needed"));
  for (int i = 0; i < rank; ++i)
    if (t.shape[i] < (i == 0 ? 0 : 1))
      fail(str(name, " has shape ", t.shape.text(), "; sizes of ", dims,
               " must be at least 1 (the first at least 0)"));
}

void Check::dtype(const char* name, const ConstTensor& t, DType allowed) const {
  if (t.dtype != allowed)
    fail(str(name, " is ", name_of(t.dtype), "; allowed: ", name_of(allowed)));
}

void Check::dtype(const char* name, const ConstTensor& t, DType allowed, DType or_allowed) const {
  if (allowed == or_allowed) return dtype(name, t, allowed);
  if (t.dtype != allowed && t.dtype != or_allowed)
    fail(str(name, " is ", name_of(t.dtype), "; allowed: ", name_of(allowed), ", ",
             name_of(or_allowed)));
}

void Check::floating(const char* name, const ConstTensor& t) const {
  if (!is_floating(t.dtype))
    fail(str(name, " is ", name_of(t.dtype), "; allowed: f32, bf16, f16, f64"));
}

void Check::absent(const char* name, const ConstTensor& t, const char* when) const {
  if (t) fail(str(name, " is given; it must be empty ", when));
}

void Check::present(const char* name, const ConstTensor& t, const char* when) const {
  if (!t && (t.shape.rank == 0 || t.numel() != 0))
    fail(str(name, " is empty; it is needed ", when));
}

void Check::workspace(std::span<const std::byte> workspace, std::int64_t bytes) const {
  if (static_cast<std::int64_t>(workspace.size()) < bytes)
    fail(str("workspace has ", workspace.size(), " bytes; at least ", bytes, " are needed"));
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % alignof(double) != 0 && bytes > 0)
    fail(str("workspace starts at an address that is no multiple of ", alignof(double)));
}

void Check::dropout(const Dropout& dropout, std::int64_t rows) const {
  if (!(dropout.p >= 0 && dropout.p < 1))
    fail(str("dropout.p is ", dropout.p, "; allowed: 0 and above, below 1"));
  if (dropout.p == 0) return;
  if (dropout.state == nullptr) fail("dropout.state is empty; it is needed where p is above 0");
  if (dropout.site >= 65536) fail(str("dropout.site is ", dropout.site, "; allowed: below 65536"));
  if (dropout.rows_per_sample < 1 || rows % dropout.rows_per_sample != 0)
    fail(str("dropout.rows_per_sample is ", dropout.rows_per_sample, "; a divisor of the ", rows,
             " rows is needed"));
}

}  // namespace tilefold::ops
