// SIGINT and SIGTERM ask a run to save and stop after its current step; a second one ends it at
// once.
#pragma once

namespace tilefold {

// Installs the handlers for as long as it lives, then restores what was there. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that came, or 0.
  int received() const;
};

}  // namespace tilefold
