// What the HDF5 reader and writer share; included by them alone, because it shows hdf5.h.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

namespace tilefold {

constexpr char kDtypeAttribute[] = "tilefold_dtype";

// An owned identifier of libhdf5; closes what it is.
class Hdf5Id {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Id() = default;
  Hdf5Id(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(other.id_), close_(other.close_) { other.id_ = -1; }
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Id() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// Stops libhdf5 from printing its error stack and from loading filter plugins. Cheap; called
// wherever a file is opened or made, as the setting belongs to the thread.
void quiet_hdf5();

// The innermost message of libhdf5's error stack, one line; empties the stack.
std::string hdf5_reason();

}  // namespace tilefold
