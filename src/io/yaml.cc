#include "io/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace tilefold {
namespace {

[[noreturn]] void refuse(const std::string& origin, int line, const std::string& why) {
  throw UsageError(str(origin, ":", line, ": ", why));
}

// Depth of nesting as an upper bound, from the text alone: open brackets plus block indents, quotes
// and comments left out. yaml-cpp recurses once a level, so this guards its stack. Tabs in an
// indent are refused here: yaml-cpp drops what follows some of them without a word.
void check_text(const std::string& text, const std::string& origin) {
  const std::size_t control = text.find_first_of(std::string("\0\1\2\3\4\5\6\7\10", 9));
  if (control != std::string::npos)
    refuse(origin, 1 + static_cast<int>(std::count(text.begin(), text.begin() + control, '\n')),
           str("a control character, byte ", static_cast<int>(text[control]),
               ": no text file in UTF-8"));
  std::vector<int> indents;
  int brackets = 0, line = 1;
  char quote = 0;
  for (std::size_t i = 0; i < text.size();) {
    // A line's indent.
    std::size_t start = i;
    while (i < text.size() && text[i] == ' ') ++i;
    const int indent = static_cast<int>(i - start);
    if (quote == 0 && i < text.size() && text[i] == '\t')
      refuse(origin, line, "a tab in the indentation; allowed: spaces");
    const bool blank = i >= text.size() || text[i] == '\n' || text[i] == '\r' || text[i] == '#';
    if (quote == 0 && brackets == 0 && !blank) {
      while (!indents.empty() && indents.back() >= indent) indents.pop_back();
      indents.push_back(indent);
    }
    char before = ' ';
    int dashes = 0;  // "- - - a" opens a level a dash
    bool leading = true;
    for (; i < text.size() && text[i] != '\n'; before = text[i++]) {
      const char c = text[i];
      if (quote != 0) {
        if (quote == '"' && c == '\\')
          ++i;
        else if (c == quote)
          quote = 0;
        if (i >= text.size() || text[i] == '\n') break;
        continue;
      }
      const bool fresh = before == ' ' || before == '[' || before == '{' || before == ',' ||
                         before == ':' || before == '\t';
      if (c == '#' && (before == ' ' || before == '\t')) {
        while (i < text.size() && text[i] != '\n') ++i;
        break;
      }
      if ((c == '"' || c == '\'') && fresh) quote = c;
      if (c == '[' || c == '{') ++brackets;
      if ((c == ']' || c == '}') && brackets > 0) --brackets;
      if (leading && (c == '-' || c == '?' || c == ':') &&
          (i + 1 >= text.size() || text[i + 1] == ' ' || text[i + 1] == '\n'))
        ++dashes;
      else if (c != ' ')
        leading = false;
      if (brackets + static_cast<int>(indents.size()) + dashes > kMaxYamlDepth)
        refuse(origin, line, str("nested more than ", kMaxYamlDepth, " levels deep"));
    }
    if (i < text.size()) ++i, ++line;
  }
}

YamlNode convert(const YAML::Node& node, const std::string& origin) {
  YamlNode out;
  out.line = node.Mark().line + 1;
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      break;
    case YAML::NodeType::Scalar:
      out.type = YamlNode::Type::scalar;
      out.text = node.Scalar();
      out.quoted = node.Tag() == "!";
      break;
    case YAML::NodeType::Sequence:
      out.type = YamlNode::Type::sequence;
      for (const auto& item : node) out.items.push_back(convert(item, origin));
      break;
    case YAML::NodeType::Map:
      out.type = YamlNode::Type::mapping;
      for (const auto& member : node) {
        const int line = member.first.Mark().line + 1;
        if (!member.first.IsScalar()) refuse(origin, line, "a key must be plain text");
        const std::string& key = member.first.Scalar();
        for (const YamlNode::Member& other : out.members)
          if (other.key == key)
            refuse(origin, line,
                   str("key '", key, "' stands twice, first in line ", other.line, "; keep one"));
        out.members.push_back({key, line, convert(member.second, origin)});
      }
      break;
  }
  return out;
}

// Refuses anchors and aliases while the text is parsed into events, before a tree grows from them.
class NoAnchors : public YAML::EventHandler {
 public:
  explicit NoAnchors(const std::string& origin) : origin_(origin) {}
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { check(mark, anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { check(mark, 1); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, anchor);
    if (value == "<<")
      refuse(origin_, mark.line + 1, "merge keys (<<) are not read; write the keys out");
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, anchor);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, anchor);
  }
  void OnMapEnd() override {}

 private:
  void check(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0)
      refuse(origin_, mark.line + 1,
             "anchors (&) and aliases (*) are not read; write the value out");
  }
  const std::string& origin_;
};

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const Member& member : members)
    if (member.key == key) return &member.value;
  return nullptr;
}

YamlNode parse_yaml(const std::string& text, const std::string& origin) {
  check_text(text, origin);
  try {
    std::istringstream events(text);
    YAML::Parser parser(events);
    NoAnchors handler(origin);
    int documents = 0;
    while (parser.HandleNextDocument(handler)) ++documents;
    if (documents > 1)
      throw UsageError(str(origin, ": holds ", documents, " documents (---); allowed: one"));
    return convert(YAML::Load(text), origin);
  } catch (const YAML::Exception& error) {
    refuse(origin, error.mark.line + 1, error.msg);
  }
}

std::string read_text(const std::string& path) {
  constexpr std::size_t kMost = 1 << 20;  // settings files have a few hundred bytes
  std::error_code ignored;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMost + 1, '\0');
  if (std::filesystem::is_directory(path, ignored) || !in.good() ||
      in.read(text.data(), static_cast<std::streamsize>(text.size())).bad())
    throw UsageError(str(path, ": the file cannot be read (missing, no permission, or no file)"));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMost)
    throw UsageError(str(path, ": larger than ", kMost, " bytes, so no settings file"));
  return text;
}

std::optional<double> parse_number(std::string_view text) {
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) digits.remove_prefix(1);
  if (digits.empty() || !((digits[0] >= '0' && digits[0] <= '9') || digits[0] == '.')) return {};
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, std::chars_format::general);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) return {};
  return text[0] == '-' ? -value : value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::string_view digits = text;
  if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
  if (digits.empty() || (digits[0] == '-' && text[0] == '+')) return {};
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, 10);
  if (result.ec == std::errc() && result.ptr == end) return value;
  // 1e4: whole, and exact as a double.
  const std::optional<double> number = parse_number(text);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 0x1p53) return {};
  if (text.find_first_of("eE.") == std::string_view::npos) return {};  // digits beyond 64 bits
  return static_cast<std::int64_t>(*number);
}

std::optional<bool> parse_truth(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return {};
}

}  // namespace tilefold
