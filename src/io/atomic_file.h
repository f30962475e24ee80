// A file that appears whole or not at all: bytes go to a temporary name in the same directory;
// commit() makes them durable (fsync), renames, and makes the name durable (fsync of the
// directory). Until then, and when anything fails, a file that was there before stays as it was. A
// link stays, and its target is replaced; a device, pipe or directory is refused.
//
// Temporary names are NAME.PID and kTemporarySuffix; readers of a directory ignore them. A process
// that dies leaves one behind, and remove_temporaries() sweeps them up when the directory is next
// opened for writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tilefold {

constexpr std::string_view kTemporarySuffix = ".partial";

// Not thread-safe.
class AtomicFile {
 public:
  // Throws Error naming path and reason when it cannot be written there.
  explicit AtomicFile(std::string path);
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Throws Error (no space left, file size limit, ...) with path, bytes written and asked.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  std::int64_t bytes() const { return bytes_; }
  const std::string& temporary_path() const { return temporary_; }
  // fsync: what was written so far is on the disk.
  void sync();
  // sync(), rename, fsync of the directory. Once, last.
  void commit();

 private:
  std::string path_, temporary_;
  int file_ = -1;
  std::int64_t bytes_ = 0;
};

// Writes `text` to `path` as above.
void write_file_atomically(const std::string& path, std::string_view text);

// Deletes what processes that died left in `directory`. REQUIRES: no one else writes there.
void remove_temporaries(const std::string& directory);

}  // namespace tilefold
