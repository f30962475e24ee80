// Writing JSON (RFC 8259) into a string, in order, without building a tree.
//
//   JsonWriter json(text);
//   json.begin_object().member("step", 3).key("losses").begin_array().value(0.5).end_array();
//   json.end_object();                                   {"step":3,"losses":[0.5]}
//
// Appends to the string and nothing else, so that a reserved one makes no allocation. Numbers read
// back to the same bits; JSON has no NaN or infinity, they become null. Strings are taken as UTF-8:
// quotes, backslashes and control characters are escaped, bytes that are no UTF-8 become U+FFFD.
// Whether keys and values alternate rightly is the caller's care.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tilefold {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);
  JsonWriter& value(bool flag);
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) JsonWriter& value(Integer number) {
    return integer(static_cast<std::int64_t>(number));
  }
  JsonWriter& null();
  // A line break between values, for readers.
  JsonWriter& newline();

  template <class Value>
  JsonWriter& member(std::string_view name, const Value& v) {
    return key(name).value(v);
  }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& integer(std::int64_t number);
  void separate();
  void quote(std::string_view text);

  std::string& out_;
  bool comma_ = false;    // a value stands before the next one on this level
  bool newline_ = false;  // asked for, written after the comma
};

}  // namespace tilefold
