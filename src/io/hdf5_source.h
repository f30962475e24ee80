// An open HDF5 file and its checks, as the reader uses them; included by src/io/hdf5_*.cc alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/hdf5.h"
#include "io/hdf5_handle.h"

namespace tilefold {

struct Hdf5IntegerType {
  int size = 0;  // bytes: 1, 2, 4 or 8
  bool is_signed = false;
};
std::optional<Hdf5IntegerType> integer_type(hid_t type);

struct Hdf5Source {
  std::string path;
  Hdf5Id file;
  std::vector<std::string> names;  // arrays and texts, sorted
  std::vector<std::string> groups;

  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    if (!ok) throw Error(str(path, ": ", parts...));
  }
  Hdf5Id checked(hid_t id, Hdf5Id::Close close, const std::string& name) const {
    if (id < 0) throw Error(str(path, ": ", name, ": damaged: ", hdf5_reason()));
    return {id, close};
  }

  // Opens `path` and lists it; hard links only, each looked at before it is followed.
  void open();
  void go_through() const;
  Hdf5Id open_set(const std::string& name) const;
  // Also sees to it that all of the elements are really in the file.
  Shape shape_of(hid_t set, const std::string& name) const;
  std::map<std::string, Hdf5Value> attributes_of(hid_t object, const std::string& name) const;
  std::string read_text(hid_t set, const std::string& name) const;

 private:
  void walk(hid_t group, const std::string& prefix, int depth);
  void refuse_unsafe(hid_t set, const std::string& name) const;
  bool whole(hid_t set, std::int64_t bytes) const;
  void read_through(hid_t set, const std::string& name) const;
  std::string read_string(hid_t source, bool is_attribute, const std::string& name) const;
};

}  // namespace tilefold
