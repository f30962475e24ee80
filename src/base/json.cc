#include "base/json.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace tilefold {

void JsonWriter::separate() {
  if (comma_) out_.push_back(',');
  if (newline_) out_.push_back('\n');
  newline_ = false;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_.push_back(bracket);
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  if (newline_) out_.push_back('\n');
  newline_ = false;
  out_.push_back(bracket);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::newline() {
  newline_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  out_.push_back(':');
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return null();
  separate();
  char digits[32];  // the shortest form that reads back has at most 24
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out_.append(digits, end);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t number) {
  separate();
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out_.append(digits, end);
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) {
  separate();
  out_.append(flag ? "true" : "false");
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_.append("null");
  comma_ = true;
  return *this;
}

void JsonWriter::quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out_.push_back('"');
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_character(text).bytes;
    if (c == '"' || c == '\\') {
      out_.push_back('\\');
      out_.push_back(text[0]);
    } else if (c == '\n') {
      out_.append("\\n");
    } else if (c == '\t') {
      out_.append("\\t");
    } else if (c < 0x20) {
      out_.append("\\u00");
      out_.push_back(kHex[c >> 4]);
      out_.push_back(kHex[c & 15]);
    } else if (length == 0) {
      out_.append("\xEF\xBF\xBD");
    } else {
      out_.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out_.push_back('"');
}

}  // namespace tilefold
