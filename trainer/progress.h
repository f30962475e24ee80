// What a person sees of a run, on stderr: a bar on a terminal, now and then a line elsewhere.
//
//   [=======>            ] step 71/200  loss 1.2345  23.4k tok/s  0:12 left
//
// The bar is redrawn at most ten times a second. Without a terminal a line is written for the first
// and the last step, and between them at every twentieth of the run, not within a second of the
// last one, but after 30 seconds at the latest. The time left comes from the mean time of a step
// since the run started (the first step left out once there are others: it warms up). Allocates
// nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace tilefold {

class Progress {
 public:
  // Writes to file descriptor fd; `bar` false: lines. steps: of the whole run; first: where it
  // starts.
  Progress(int fd, bool bar, std::int64_t first, std::int64_t steps);
  // The bar if fd is a terminal that can show one.
  static bool shows_bar(int fd);

  // After step (0-based) was done; now: seconds of any steady clock; more: facts to show besides.
  void step(std::int64_t step, double loss, double tokens_per_s, double now,
            std::string_view more = {});
  // A line of its own, above the bar.
  void message(std::string_view line);
  // Leaves the bar's line. Called once after the last step, or when a run stops early.
  void finish();

 private:
  void draw(std::int64_t step, double loss, double tokens_per_s, double left,
            std::string_view more);
  void write(std::string_view text);

  int fd_;
  bool bar_;
  bool drawn_ = false;  // the cursor stands behind a bar
  std::int64_t first_, steps_;
  double first_time_ = 0;  // when the first step was done
  double last_shown_ = 0;
};

}  // namespace tilefold
