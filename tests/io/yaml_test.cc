#include "io/yaml.h"

#include <pthread.h>

#include <string>

#include "base/error.h"
#include "tests/catch.h"

using namespace tilefold;

namespace {

std::string error_of(const std::string& text) {
  try {
    parse_yaml(text, "c.yaml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a tree keeps order, lines and quotes") {
  const YamlNode root = parse_yaml("a: 1\nb: {c: [2, 'x']}\n", "c.yaml");
  REQUIRE(root.members.size() == 2);
  CHECK(root.members[1].line == 2);
  const YamlNode* c = root.find("b")->find("c");
  REQUIRE(c);
  CHECK(c->items[0].text == "2");
  CHECK_FALSE(c->items[0].quoted);
  CHECK(c->items[1].quoted);
  CHECK(root.find("none") == nullptr);
  CHECK(parse_yaml("", "c").type == YamlNode::Type::null);
  CHECK(parse_yaml("# nothing\n", "c").type == YamlNode::Type::null);
}

TEST_CASE("a key that stands twice is refused with both lines") {
  const std::string top = error_of("a: 1\nb: 2\na: 4\n");
  CHECK(contains(top, "c.yaml:3"));
  CHECK(contains(top, "line 1"));
  CHECK(contains(error_of("m:\n  a: 1\n  b: 2\n  a: 4\n"), "c.yaml:4"));
}

TEST_CASE("anchors, aliases and merge keys are refused by name") {
  CHECK(contains(error_of("a: &x {p: 1, q: 2}\nb: {<<: *x, p: 3}\n"), "anchor"));
  CHECK(contains(error_of("a: {<<: {p: 1}}\n"), "merge"));
  CHECK_FALSE(error_of("a: *nowhere\n").empty());
}

TEST_CASE("tabs, wrong indents and text after the document are errors with a line") {
  CHECK(contains(error_of("a:\n  b: 1\n\tc: 2\nd: 3\n"), "c.yaml:3"));
  CHECK(contains(error_of("a:\n  b: 1\n c: 2\n"), "c.yaml:"));
  CHECK(contains(error_of("a:\n  b: 1\n   c: 2\n"), "c.yaml:"));
  CHECK_FALSE(error_of("a: 1\n...\nb: 2\n").empty());
  CHECK_FALSE(error_of("a: 1\n---\nb: 2\n").empty());
  CHECK_FALSE(error_of("a: [1, 2\n").empty());
  CHECK_FALSE(error_of("a: 1\n}\nb: 2\n").empty());
}

TEST_CASE("control characters are an error with a line, for a parser may stop at them") {
  CHECK(contains(error_of(std::string("a: 1\n\0\nb: 2\n", 12)), "c.yaml:2"));
  CHECK(contains(error_of(std::string("a: x\0\nb: 2\n", 11)), "c.yaml:1"));
  CHECK(contains(error_of("a: 1\n\4\nb: 2\n"), "c.yaml:2"));
  CHECK(error_of("a: \"x\\ty\"\r\nb: 2\r\n").empty());
}

TEST_CASE("files that have no end, or cannot be read, are no settings files") {
  for (const char* path : {"/dev/zero", "/proc/self/mem", "/", "/nonexistent"})
    CHECK_THROWS_AS(read_text(path), UsageError);
  CHECK(read_text("/dev/null").empty());
}

TEST_CASE("deep nesting is an error, within a small stack") {
  auto deep = [](void*) -> void* {
    static std::string failed;
    for (int depth : {5000, 20000})
      for (const char* open : {"[", "{", "{a: ", "- ", "? "}) {
        std::string text;
        for (int i = 0; i < depth; ++i) text += open;
        if (!contains(error_of(text), "deep")) failed += open;
      }
    std::string indents;
    for (int i = 0; i < 5000; ++i)
      indents += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
    if (!contains(error_of(indents), "deep")) failed += "indents";
    return &failed;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, &attributes, deep, nullptr) == 0);
  void* failed = nullptr;
  pthread_join(thread, &failed);
  CHECK(*static_cast<std::string*>(failed) == "");
}

TEST_CASE("numbers have one reading or none") {
  CHECK(parse_number("1e-4") == 1e-4);
  CHECK(parse_number("1.0e-4") == 1e-4);
  CHECK(parse_number("-2.5E3") == -2500);
  CHECK(parse_number(".5") == 0.5);
  CHECK(parse_integer("1e4") == 10000);
  CHECK(parse_integer("010") == 10);
  CHECK(parse_integer("-7") == -7);
  CHECK(parse_integer("9223372036854775807") == 9223372036854775807);
  for (const char* text : {"0o10", "0x10", "1_000", "12:30", "yes", "", "+", "-", "1.5", "1e", "e4",
                           "9223372036854775808", "1e300", "+-3", "1 2"})
    CHECK_FALSE(parse_integer(text).has_value());
  for (const char* text :
       {"0x10", "1_000", "12:30", "yes", ".inf", "inf", "nan", "-.", ".", "1e999"})
    CHECK_FALSE(parse_number(text).has_value());
  CHECK(parse_truth("true") == true);
  CHECK_FALSE(parse_truth("yes").has_value());
}
