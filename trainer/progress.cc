#include "trainer/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tilefold {
namespace {

constexpr double kRedraw = 0.1;     // seconds between drawings of the bar
constexpr double kLineGap = 1;      // at least, between lines
constexpr double kLongestGap = 30;  // at most
constexpr std::int64_t kLines = 20;
constexpr char kClear[] = "\r\033[K";  // to the line's start, and erase it

struct Text {
  char chars[32];
};

// 940, 23.4k, 1.20M
Text short_number(double x) {
  Text text;
  const char* unit = x >= 999.5e3 ? "M" : x >= 999.5 ? "k" : "";
  const double value = x >= 999.5e3 ? x / 1e6 : x >= 999.5 ? x / 1e3 : x;
  const int decimals = *unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text.chars, sizeof text.chars, "%.*f%s", decimals, value, unit);
  return text;
}

// 0:12, 1:02:03; -:-- if it is not known yet
Text clock(double seconds) {
  Text text;
  if (!(seconds >= 0 && seconds < 1e9)) {
    std::strcpy(text.chars, "-:--");
    return text;
  }
  const auto s = static_cast<long>(std::ceil(seconds));
  if (s >= 3600)
    std::snprintf(text.chars, sizeof text.chars, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else
    std::snprintf(text.chars, sizeof text.chars, "%ld:%02ld", s / 60, s % 60);
  return text;
}

int columns(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(int fd, bool bar, std::int64_t first, std::int64_t steps)
    : fd_(fd), bar_(bar), first_(first), steps_(steps) {}

bool Progress::shows_bar(int fd) {
  const char* terminal = std::getenv("TERM");
  return isatty(fd) == 1 && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

void Progress::step(std::int64_t step, double loss, double tokens_per_s, double now,
                    std::string_view more) {
  const std::int64_t done = step + 1;
  const bool starts = step == first_, ends = done == steps_;
  if (starts) first_time_ = now;
  const double left = starts ? (ends ? 0 : -1)
                             : (now - first_time_) / static_cast<double>(step - first_) *
                                   static_cast<double>(steps_ - done);
  const std::int64_t stride = std::max<std::int64_t>(1, (steps_ + kLines - 1) / kLines);
  const double since = now - last_shown_;
  const bool due =
      bar_ ? since >= kRedraw : (done % stride == 0 && since >= kLineGap) || since >= kLongestGap;
  if (!starts && !ends && !due) return;
  last_shown_ = now;
  draw(step, loss, tokens_per_s, left, more);
}

void Progress::draw(std::int64_t step, double loss, double tokens_per_s, double left,
                    std::string_view more) {
  char facts[256];
  const int length = std::snprintf(
      facts, sizeof facts, "step %lld/%lld  loss %.4f  %s tok/s%.*s  %s left",
      static_cast<long long>(step + 1), static_cast<long long>(steps_), loss,
      short_number(tokens_per_s).chars, static_cast<int>(std::min<std::size_t>(more.size(), 100)),
      more.data(), clock(left).chars);
  char line[512];
  if (!bar_) {
    std::snprintf(line, sizeof line, "%s\n", facts);
    write(line);
    return;
  }
  // The facts first, the bar in what the terminal has left: [===>   ], 40 columns at most.
  const int width = std::clamp(columns(fd_) - length - 4, 0, 40);
  char bar[64] = "";
  if (width >= 8) {
    const auto filled = static_cast<int>(width * (step + 1) / std::max<std::int64_t>(steps_, 1));
    bar[0] = '[';
    for (int i = 0; i < width; ++i) bar[1 + i] = i < filled ? '=' : i == filled ? '>' : ' ';
    std::strcpy(bar + 1 + width, "] ");
  }
  std::snprintf(line, sizeof line, "%s%s%s", kClear, bar, facts);
  write(line);
  drawn_ = true;
}

void Progress::message(std::string_view line) {
  if (drawn_) write(kClear);
  drawn_ = false;
  write(line);
  write("\n");
}

void Progress::finish() {
  if (drawn_) write("\n");
  drawn_ = false;
}

void Progress::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody is looking; a run does not stop for that
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace tilefold
