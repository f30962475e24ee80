#include "trainer/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/catch.h"
#include "tests/trainer/errors.h"
#include "tests/trainer/files.h"

namespace tilefold {
namespace {

// What a run of `steps` steps that take `seconds` each writes.
std::string shown(bool bar, std::int64_t first, std::int64_t steps, double seconds,
                  std::int64_t message_at = -1) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  Progress progress(fd, bar, first, steps);
  for (std::int64_t step = first; step < steps; ++step) {
    progress.step(step, 1.25, 23456.0, 1000 + seconds * static_cast<double>(step));
    if (step == message_at) progress.message("saved");
  }
  progress.finish();
  ::close(fd);
  return read_text(path);
}

TEST_CASE("more facts stand before the time left") {
  const TemporaryDirectory directory;
  const int fd = ::open(directory.file("out").c_str(), O_CREAT | O_WRONLY, 0600);
  Progress(fd, false, 0, 1).step(0, 1.25, 23456.0, 1000, "  mfu 40.0%/35.0%  1.50 GiB");
  ::close(fd);
  CHECK(read_text(directory.file("out")) ==
        "step 1/1  loss 1.2500  23.5k tok/s  mfu 40.0%/35.0%  1.50 GiB  0:00 left\n");
}

TEST_CASE("lines: first and last always, about twenty between, none crowded") {
  const auto lines = lines_of(shown(false, 0, 1000, 2));
  CHECK(lines.front() == "step 1/1000  loss 1.2500  23.5k tok/s  -:-- left");
  CHECK(lines.back() == "step 1000/1000  loss 1.2500  23.5k tok/s  0:00 left");
  CHECK(lines.size() > 60);  // every 30 seconds of 2000
  CHECK(lines.size() < 100);
  CHECK(lines_of(shown(false, 0, 1000, 0.1)).size() == 21);
  CHECK(lines_of(shown(false, 0, 1000, 0.0001)).size() == 2);
  CHECK(lines_of(shown(false, 999, 1000, 1)).size() == 1);
  for (const auto& line : lines) CHECK(!has(line, "\033"));
}

TEST_CASE("the time left is that of the steps still to come") {
  // Step 101 of 200, resumed at 100, 60 seconds each: 99 more.
  const auto lines = lines_of(shown(false, 99, 200, 60));
  CHECK(has(lines.at(1), "step 101/200"));
  CHECK(has(lines.at(1), "1:39:00 left"));
}

TEST_CASE("the bar is redrawn in place and left with a line end") {
  const std::string text = shown(true, 0, 100, 0.05, 50);
  CHECK(has(text, "\r\033[K["));
  CHECK(has(text, "step 100/100"));
  CHECK(text.back() == '\n');
  const auto lines = lines_of(text);
  CHECK(lines.size() == 2);
  CHECK(lines.at(0).ends_with("\r\033[Ksaved"));
  // Ten times a second at most: 5 seconds of steps.
  std::size_t drawn = 0;
  for (std::size_t at = 0; (at = text.find("step ", at)) != std::string::npos; ++at) ++drawn;
  CHECK(drawn <= 52);
  CHECK(drawn >= 30);
}

TEST_CASE("a run without steps says nothing, and a closed descriptor harms nobody") {
  CHECK(shown(true, 5, 5, 1).empty());
  Progress nowhere(-1, false, 0, 10);
  nowhere.step(0, 1, 1, 1);
  nowhere.finish();
}

}  // namespace
}  // namespace tilefold
