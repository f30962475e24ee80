// YAML settings files as a tree with line numbers. Strict where YAML is lenient: what could be read
// in two ways, or would be dropped without a word, is an error that names the line.
//
//   keys         a key twice in one mapping is refused with both lines; keys are plain text
//   anchors      refused, as are aliases and merge keys (<<): every value stands where it counts
//   documents    one; text after its end is refused, and so are control characters
//   depth        at most kMaxYamlDepth open brackets or indents, checked before parsing, so that a
//                hostile file cannot exhaust the stack
//   scalars      kept as text; numbers are read by parse_integer and parse_number below
//
// All failures: UsageError, one line, with origin and line. Thread-safe: no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tilefold {

constexpr int kMaxYamlDepth = 32;

struct YamlNode {
  enum class Type : std::uint8_t { null, scalar, sequence, mapping };
  struct Member;

  Type type = Type::null;
  int line = 0;                 // counted from 1
  bool quoted = false;          // scalar: it stood in quotes, so it is text whatever it looks like
  std::string text;             // scalar
  std::vector<YamlNode> items;  // sequence
  std::vector<Member> members;  // mapping, in file order

  const YamlNode* find(std::string_view key) const;  // of a mapping; null if absent
};

struct YamlNode::Member {
  std::string key;
  int line = 0;
  YamlNode value;
};

// `origin` stands in messages: a path, or "--set".
YamlNode parse_yaml(const std::string& text, const std::string& origin);
// A settings file's text, at most 1 MiB.
std::string read_text(const std::string& path);

// Decimal only: 10, -3, 010 (= 10), 1e4 where it is whole. Not 0x10, 0o10, 1_000, 12:30, 1.5, or
// beyond 64 bits: nothing.
std::optional<std::int64_t> parse_integer(std::string_view text);
// Decimal, finite: 1e-4, .5, -2.5E3. Not inf, nan, hexadecimal.
std::optional<double> parse_number(std::string_view text);
// true and false only.
std::optional<bool> parse_truth(std::string_view text);

}  // namespace tilefold
