// HDF5 files: named arrays, texts and attributes; libhdf5 stays inside this room.
//
// What is accepted: hard links; groups; contiguous, compact or chunked data sets of the DTypes, of
// at most kMaxRank dimensions, with the filters deflate, shuffle and fletcher32. Anything that
// would lead out of the file or into foreign code (external storage, external and soft links,
// virtual data sets, filter plugins) is refused before it is followed. bf16 and f16 are kept as
// uint16 with a text attribute "tilefold_dtype" = "bf16" or "f16".
//
// libhdf5 itself can crash on damaged files: unless the caller vouches for a file (Hdf5Trust), a
// child process goes through it first. All failures are Errors of one line with the file's path.
// libhdf5 is not thread-safe as distributions ship it: use all objects of this header from one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/parallel.h"
#include "base/tensor.h"

namespace tilefold {

using Hdf5Value = std::variant<std::int64_t, double, std::string>;

struct Hdf5Info {
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

struct Hdf5Integers {
  std::int64_t size = 0;  // bytes of an element: 1, 2, 4 or 8
  bool is_signed = false;
  std::int64_t count = 0;
};

// checked: the caller has compared the file's bytes with a checksum.
enum class Hdf5Trust : std::uint8_t { foreign, checked };

// Reads. Names are paths inside the file without the leading slash: "q", "weights/layer 0/qkv".
class Hdf5Reader {
 public:
  // Missing, unreadable, cut (with the size expected and found) or foreign files: Error.
  explicit Hdf5Reader(const std::string& path, Hdf5Trust trust = Hdf5Trust::foreign);
  ~Hdf5Reader();
  Hdf5Reader(Hdf5Reader&&) noexcept;
  Hdf5Reader& operator=(Hdf5Reader&&) noexcept;

  const std::string& path() const;
  const std::vector<std::string>& names() const;  // every array and text, sorted
  bool has(std::string_view name) const;

  // Element type and shape of an array; Error naming it when it is missing or of no DType.
  Hdf5Info info(const std::string& name) const;
  // REQUIRES: `into` is dense; Error unless dtype and shape are those of the file.
  void read(const std::string& name, Tensor into) const;
  // A text (a data set of one string).
  std::string text(const std::string& name) const;

  // Elements [first, first + into.size()) of a one-dimensional array of any integer type up to 64
  // bits, widened. Error when a value does not fit.
  void read_integers(const std::string& name, std::int64_t first,
                     std::span<std::int64_t> into) const;
  // Element type and number of a one-dimensional array of integers.
  Hdf5Integers integers(const std::string& name) const;
  // Where the array lies in the file, if it lies there in one piece in this machine's byte order.
  std::optional<std::int64_t> offset(const std::string& name) const;

  // Attributes of one value (number, truth value or string) of an array or group; "" is the root.
  std::map<std::string, Hdf5Value> attributes(const std::string& name = "") const;

 private:
  struct File;
  std::unique_ptr<File> file_;
};

// Collects arrays, then writes them all. libhdf5 only lays the file out, in memory and without the
// arrays; the bytes are then written by ourselves, so a full disk is seen at the write that it
// concerns, and memory grows with the number of arrays, not with their size.
class Hdf5Writer {
 public:
  Hdf5Writer();
  ~Hdf5Writer();

  // REQUIRES: `array` is dense and stays alive and unchanged until the file is written; the name is
  // new. Groups on the way are made.
  void add(const std::string& name, ConstTensor array);
  void add_text(const std::string& name, std::string text);
  // An attribute of an array that was added, or of the root ("").
  void set(const std::string& name, const std::string& attribute, Hdf5Value value);

  // Sets `attribute` of every array to hash(its bytes).
  void hash_arrays(const std::string& attribute,
                   FunctionRef<std::int64_t(std::span<const std::byte>)> hash);

  // The whole file, piece by piece, in order.
  void write(FunctionRef<void(std::span<const std::byte>)> sink) const;
  // Writes `path` whole or not at all (io/atomic_file.h).
  void save(const std::string& path) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

}  // namespace tilefold
