// What token ids stand for, so that a prompt can be encoded and a sample printed.
//
//   bytes        256 ids, the byte's value
//   characters   the Unicode characters of the file, in code point order
//   symbols      numbers of a made task (copy, recall)
//   tokens       ids of a tokenizer that is not here; printed as numbers
//
// Text of symbols and tokens is numbers separated by blanks. Immutable after it is made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilefold {

enum class VocabularyKind : std::uint8_t { bytes, characters, symbols, tokens };

std::string_view name_of(VocabularyKind kind);

class Vocabulary {
 public:
  static Vocabulary bytes();
  static Vocabulary symbols(std::int64_t size);
  static Vocabulary tokens(std::int64_t size);
  // Every character of the texts. Throws Error naming the origin and byte where one is no UTF-8.
  static Vocabulary characters(std::span<const std::string_view> texts,
                               std::span<const std::string> origins);

  VocabularyKind kind() const { return kind_; }
  std::int64_t size() const { return size_; }

  // Throws Error naming the origin, the place and the character or number that is not in it.
  std::vector<std::int32_t> encode(std::string_view text, std::string_view origin) const;
  // REQUIRES: ids in [0, size()).
  std::string decode(std::span<const std::int32_t> ids) const;

  // One line that holds all of it, for checkpoints; parse(save()) is the same vocabulary.
  std::string save() const;
  static Vocabulary parse(std::string_view saved);

 private:
  Vocabulary(VocabularyKind kind, std::int64_t size) : kind_(kind), size_(size) {}

  VocabularyKind kind_;
  std::int64_t size_;
  std::vector<char32_t> characters_;  // [size], ascending; characters only
};

}  // namespace tilefold
