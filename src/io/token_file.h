// Token files, read at any position. Formats, told apart by their first bytes:
//   HDF5         a one-dimensional data set of integers, named by the caller
//   llm.c        256 x int32 {20240520, 1, tokens, 0 ...}, then uint16; {20240801, 7, ...}: uint32
//   headerless   uint16
// all little-endian. Positions are 64-bit and the file stays on the disk; only an HDF5 data set
// that is chunked, filtered or big-endian is read into memory when it is opened.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tilefold {

// Thread-safe; reading allocates nothing and does not involve libhdf5.
class TokenFile {
 public:
  // Unreadable, cut, of odd size, without tokens: Error with file, what was needed and found.
  TokenFile(const std::string& path, const std::string& dataset);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  const std::string& path() const;
  std::int64_t size() const;  // tokens
  // Tokens [position, position + into.size()). REQUIRES: they lie in [0, size()). Error naming file
  // and position for an id that is negative or not below `vocab`.
  void read(std::int64_t position, std::int64_t vocab, std::span<std::int32_t> into) const;
  // One more than the largest id; reads all of the file. Negative ids are Errors.
  std::int64_t vocabulary() const;

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

}  // namespace tilefold
