#include "base/json.h"

#include <charconv>
#include <limits>

#include "tests/catch.h"

namespace tilefold {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  JsonWriter(out).value(text);
  return out;
}

std::string number(double x) {
  std::string out;
  JsonWriter(out).value(x);
  return out;
}

TEST_CASE("commas and brackets at every level") {
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("a", 1).key("b").begin_array();
  json.begin_object().end_object().value("x").value(true).null().begin_array().end_array();
  json.end_array().member("c", std::int64_t{1} << 62).end_object();
  CHECK(out == R"({"a":1,"b":[{},"x",true,null,[]],"c":4611686018427387904})");
}

TEST_CASE("line breaks stand between values only") {
  std::string out;
  JsonWriter json(out);
  json.begin_array().newline().value(1).newline().value(2).newline().end_array();
  CHECK(out == "[\n1,\n2\n]");
}

TEST_CASE("text is escaped, and always UTF-8") {
  CHECK(quoted("a\"b\\c\n\t\x01") == R"("a\"b\\c\n\t\u0001")");
  CHECK(quoted("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "\"h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\"");
  const std::string replaced = "\"\xEF\xBF\xBD\"";
  CHECK(quoted("\xFF") == replaced);
  CHECK(quoted("\xC3") == replaced);                            // cut
  CHECK(quoted("\xC0\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");  // overlong
}

TEST_CASE("numbers read back to the same bits, and there is no bare NaN") {
  for (const double x : {0.1, 1e-4, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 3e-7}) {
    const std::string text = number(x);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    CHECK(back == x);
  }
  CHECK(number(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(number(-std::numeric_limits<double>::infinity()) == "null");
}

}  // namespace
}  // namespace tilefold
