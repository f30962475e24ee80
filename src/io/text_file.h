// Text files as token ids: bytes (ids 0..255), or the file's own characters (Unicode code points,
// sorted; an id is a character's place among them, as in nanoGPT's character data sets).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tilefold {

// The whole file. Missing, unreadable or empty: Error with path and reason.
std::string read_text_file(const std::string& path);

// A character vocabulary. Comparable, so that a checkpoint's can be checked against a file's.
class Characters {
 public:
  // Of a text; `origin` (a path) is for messages. Error with the byte offset of invalid UTF-8.
  static Characters of(std::string_view text, const std::string& origin);
  // From the characters themselves, in order of id (as text() gives them).
  static Characters from(std::string_view characters, const std::string& origin);

  std::int64_t size() const { return static_cast<std::int64_t>(points_.size()); }
  std::string text() const;  // all characters in order of id, UTF-8
  // Error with the byte offset of the first character that is not in the vocabulary.
  std::vector<std::int32_t> encode(std::string_view text, const std::string& origin) const;
  std::string decode(std::int32_t id) const;  // UTF-8; REQUIRES: 0 <= id < size()
  bool operator==(const Characters&) const = default;

 private:
  std::vector<char32_t> points_;  // sorted
};

// Bytes as ids.
std::vector<std::int32_t> encode_bytes(std::string_view text);

}  // namespace tilefold
