// Text to ids and back, and what a vocabulary refuses.
#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "trainer/data/vocabulary.h"

namespace tilefold {
namespace {

Vocabulary characters_of(std::string_view text) {
  const std::string origin = "some.txt";
  return Vocabulary::characters({&text, 1}, {&origin, 1});
}

TEST_CASE("bytes are their values") {
  const Vocabulary v = Vocabulary::bytes();
  CHECK(v.size() == 256);
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const auto ids = v.encode(all, "prompt");
  REQUIRE(ids.size() == 256);
  for (int i = 0; i < 256; ++i) CHECK(ids[static_cast<std::size_t>(i)] == i);
  CHECK(v.decode(ids) == all);
}

TEST_CASE("characters in code point order, of one to four bytes") {
  const std::string text =
      "b\xC3\xA9"
      "a\n\xE2\x82\xAC\xF0\x9F\x98\x80"
      "ab";  // b e' a nl euro smile a b
  const Vocabulary v = characters_of(text);
  CHECK(v.size() == 6);
  CHECK(v.encode("\nab", "p") == std::vector<std::int32_t>{0, 1, 2});
  CHECK(v.encode(text, "p") == std::vector<std::int32_t>{2, 3, 1, 0, 4, 5, 1, 2});
  CHECK(v.decode(v.encode(text, "p")) == text);
  const std::string message = thrown<Error>([&] { v.encode("abx", "the prompt"); });
  CHECK(has(message, "the prompt"));
  CHECK(has(message, "'x' at byte 2"));
}

TEST_CASE("what is no UTF-8 is refused with its byte") {
  for (const char* bad : {"ab\xFF", "ab\xC3", "ab\xC0\xAF", "ab\xED\xA0\x80", "ab\xF5\x80\x80\x80",
                          "ab\xE2\x82"
                          "a",
                          "ab\x80"}) {
    const std::string message = thrown<Error>([&] { characters_of(bad); });
    CHECK(has(message, "some.txt"));
    CHECK(has(message, "byte 2"));
  }
}

TEST_CASE("symbols and tokens are numbers") {
  const Vocabulary v = Vocabulary::symbols(32);
  CHECK(v.encode("3 31,0\n7", "p") == std::vector<std::int32_t>{3, 31, 0, 7});
  CHECK(v.decode(v.encode("3 31 0", "p")) == "3 31 0");
  for (const char* bad : {"1 32", "1 -1", "1 x", "1 2x"})
    CHECK(has(thrown<Error>([&] { v.encode(bad, "p"); }), "at byte 2"));
}

TEST_CASE("a saved vocabulary is the same vocabulary") {
  for (const Vocabulary& v :
       {Vocabulary::bytes(), Vocabulary::symbols(5), Vocabulary::tokens(50257),
        characters_of("h\xC3\xA9llo \n\xF0\x9F\x98\x80")}) {
    const Vocabulary back = Vocabulary::parse(v.save());
    CHECK(back.kind() == v.kind());
    CHECK(back.size() == v.size());
    CHECK(back.save() == v.save());
    CHECK(has(v.save(), "\n") == false);
  }
  const Vocabulary v = characters_of("abc");
  CHECK(Vocabulary::parse(v.save()).encode("cab", "p") == v.encode("cab", "p"));
  for (const char* bad : {"", "bytes", "bytes 255", "letters 3", "characters 3 97 98",
                          "characters 2 98 97", "symbols 3 1"})
    CHECK(thrown<Error>([&] { Vocabulary::parse(bad); }) != "");
}

}  // namespace
}  // namespace tilefold
