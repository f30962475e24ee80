// A regular file, read at any place. Thread-safe: reads share no position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tilefold {

class InputFile {
 public:
  // Throws Error with path and reason when it cannot be read or is no regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // when it was opened
  // Bytes [offset, offset + into.size()); Error when they are not all there any more.
  void read(std::int64_t offset, std::span<std::byte> into) const;

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace tilefold
