// Checkpoint files: one HDF5 file of named arrays, texts and numbers that is whole or is not there.
//
//   [ HDF5, readable by any tool ][ trailer, 64 bytes ]
//   trailer: "tilefold checkpoint 1\n", zeros up to byte 40 | u64 HDF5 bytes | u64 their xxh64 |
//            u64 xxh64 of the 56 bytes before; little-endian. HDF5 ignores bytes after its end.
//
// Writing: temporary name, every byte hashed on its way, fsync, read back and compared, rename,
// fsync of the directory; never in place. Whatever fails (no space, a short write, a kill at any
// time) leaves earlier checkpoints as they were. Reading: size and hash are compared before libhdf5
// sees the file, so a cut at any length and any changed byte is an Error. Every array also carries
// its own xxh64 (attribute "xxh64"), compared when it is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "io/hdf5.h"

namespace tilefold {

class CheckpointWriter {
 public:
  // Host memory. REQUIRES: dense; alive and unchanged until save(); names are new. A name such as
  // "weights/layer 0/qkv" makes groups.
  void add(const std::string& name, ConstTensor host);
  void set(const std::string& name, std::string text);
  void set(const std::string& name, std::int64_t number);
  // Throws Error with the path and the reason; then no file of that name was changed.
  void save(const std::string& path);

 private:
  Hdf5Writer file_;
};

// What is missing, or of another type or shape, is an Error naming file and part.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<std::string>& names() const { return arrays_; }  // arrays, sorted
  bool has(const std::string& name) const;                           // array, text or number
  std::string text(const std::string& name) const;
  std::int64_t number(const std::string& name) const;
  Hdf5Info info(const std::string& name) const;           // of an array
  void read(const std::string& name, Tensor host) const;  // REQUIRES: dense

 private:
  Hdf5Reader file_;
  std::map<std::string, Hdf5Value> numbers_;
  std::vector<std::string> arrays_;
};

// Throws Error unless `path` is whole: size and hash as its trailer says.
void verify_checkpoint_file(const std::string& path);

// Checkpoints of a run, "step-NUMBER.h5" in a directory, by number, newest first. Temporary
// leftovers and other names are ignored; a directory that is not there has none.
std::vector<std::string> list_checkpoints(const std::string& directory);
// Deletes all but the newest `keep` (at least 1); nothing while none of those is whole.
void prune(const std::string& directory, std::int64_t keep);

// The right to write in a directory, which is made if need be: held as long as this lives, given up
// by the system when the process dies. Throws Error when another process has it.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace tilefold
