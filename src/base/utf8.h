// UTF-8 and back (RFC 3629).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tilefold {

struct Utf8Character {
  char32_t value = 0;
  std::size_t bytes = 0;  // 0: text starts with no valid character
};

// The first character of a text that is not empty. Overlong forms, surrogates and values above
// U+10FFFF are not valid.
inline Utf8Character utf8_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t value = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto tail = static_cast<unsigned char>(text[i]);
    if ((tail & 0xC0) != 0x80) return {};
    value = (value << 6) | (tail & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[bytes] || value > 0x10FFFF || surrogate) return {};
  return {value, bytes};
}

std::string utf8_text(char32_t character);

}  // namespace tilefold
