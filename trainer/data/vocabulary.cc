#include "trainer/data/vocabulary.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/utf8.h"

namespace tilefold {
namespace {

constexpr std::string_view kNames[] = {"bytes", "characters", "symbols", "tokens"};

// Calls visit(character, byte where it starts).
template <class Visit>
void each_character(std::string_view text, std::string_view origin, const Visit& visit) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character next = utf8_character(text.substr(i, 4));
    require(
        next.bytes > 0, origin, ": byte ", i,
        " starts no UTF-8 character; convert it to UTF-8, or train on bytes (data.unit: bytes)");
    visit(next.value, i);
    i += next.bytes;
  }
}

bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ','; }

std::vector<std::int32_t> encode_numbers(std::string_view text, std::int64_t size,
                                         std::string_view origin) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < text.size();) {
    if (blank(text[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && !blank(text[end])) ++end;
    std::int64_t id = -1;
    const auto result = std::from_chars(text.data() + i, text.data() + end, id);
    require(result.ec == std::errc() && result.ptr == text.data() + end && id >= 0 && id < size,
            origin, ": '", text.substr(i, end - i), "' at byte ", i,
            " is no token; allowed: numbers from 0 to ", size - 1, " separated by blanks");
    ids.push_back(static_cast<std::int32_t>(id));
    i = end;
  }
  return ids;
}

}  // namespace

std::string_view name_of(VocabularyKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

Vocabulary Vocabulary::bytes() { return {VocabularyKind::bytes, 256}; }
Vocabulary Vocabulary::symbols(std::int64_t size) { return {VocabularyKind::symbols, size}; }
Vocabulary Vocabulary::tokens(std::int64_t size) { return {VocabularyKind::tokens, size}; }

Vocabulary Vocabulary::characters(std::span<const std::string_view> texts,
                                  std::span<const std::string> origins) {
  std::set<char32_t> found;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    char32_t latest = 0xFFFFFFFF;
    each_character(texts[i], origins[i], [&](char32_t c, std::size_t) {
      if (c != latest) found.insert(latest = c);
    });
  }
  Vocabulary vocabulary(VocabularyKind::characters, static_cast<std::int64_t>(found.size()));
  vocabulary.characters_.assign(found.begin(), found.end());
  return vocabulary;
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text, std::string_view origin) const {
  std::vector<std::int32_t> ids;
  switch (kind_) {
    case VocabularyKind::bytes:
      ids.resize(text.size());
      std::transform(text.begin(), text.end(), ids.begin(), [](char c) {
        return static_cast<std::int32_t>(static_cast<unsigned char>(c));
      });
      return ids;
    case VocabularyKind::characters:
      ids.reserve(text.size());
      each_character(text, origin, [&](char32_t c, std::size_t at) {
        const auto place = std::lower_bound(characters_.begin(), characters_.end(), c);
        require(place != characters_.end() && *place == c, origin, ": character '", utf8_text(c),
                "' at byte ", at, " is not among the ", size_,
                " characters that the model was trained on");
        ids.push_back(static_cast<std::int32_t>(place - characters_.begin()));
      });
      return ids;
    case VocabularyKind::symbols:
    case VocabularyKind::tokens:
      return encode_numbers(text, size_, origin);
  }
  return ids;
}

std::string Vocabulary::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    expect(id >= 0 && id < size_, "token id outside the vocabulary");
    if (kind_ == VocabularyKind::bytes) {
      text.push_back(static_cast<char>(id));
    } else if (kind_ == VocabularyKind::characters) {
      text += utf8_text(characters_[static_cast<std::size_t>(id)]);
    } else {
      if (!text.empty()) text.push_back(' ');
      text += std::to_string(id);
    }
  }
  return text;
}

std::string Vocabulary::save() const {
  std::string saved = str(name_of(kind_), ' ', size_);
  for (const char32_t c : characters_) saved += str(' ', static_cast<std::uint32_t>(c));
  return saved;
}

Vocabulary Vocabulary::parse(std::string_view saved) {
  std::istringstream in{std::string(saved)};
  std::string name;
  std::int64_t size = -1;
  in >> name >> size;
  const auto kind = std::find(std::begin(kNames), std::end(kNames), name);
  require(!in.fail() && kind != std::end(kNames) && size > 0, "saved vocabulary is not readable: '",
          saved.substr(0, 40), "'");
  Vocabulary vocabulary(static_cast<VocabularyKind>(kind - std::begin(kNames)), size);
  std::uint32_t character = 0;
  while (in >> character) vocabulary.characters_.push_back(character);
  const bool characters = vocabulary.kind_ == VocabularyKind::characters;
  require(static_cast<std::int64_t>(vocabulary.characters_.size()) == (characters ? size : 0) &&
              std::is_sorted(vocabulary.characters_.begin(), vocabulary.characters_.end()) &&
              (vocabulary.kind_ != VocabularyKind::bytes || size == 256),
          "saved vocabulary is damaged: '", saved.substr(0, 40), "'");
  return vocabulary;
}

}  // namespace tilefold
