// Token files, read at any position. Formats, told apart by their first bytes:
//   HDF5      one-dimensional data set of integers, named by the caller
//   llm.c     256 x int32 {20240520, 1, tokens, ...}, then uint16 little-endian
//   headerless uint16 little-endian, otherwise
// Positions are 64-bit; the file stays on disk (mapped), what is read at once is up to the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tilefold {

// Thread-safe (reads share nothing), except for HDF5 data sets that are chunked or filtered.
class TokenFile {
 public:
  // Unreadable, cut, of odd size, without tokens: Error with file, what was needed and found.
  // `dataset` names the data set of an HDF5 file.
  TokenFile(const std::string& path, const std::string& dataset);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  const std::string& path() const;
  std::int64_t size() const;  // tokens
  // Tokens [position, position + into.size()). Error naming file and position for an id that is
  // negative or not below `vocab`.
  void read(std::int64_t position, std::int64_t vocab, std::span<std::int32_t> into) const;
  // One more than the largest id of the file: reads all of it. Negative ids are Errors.
  std::int64_t vocabulary() const;

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

}  // namespace tilefold
