// SIGINT and SIGTERM ask a run to save and stop after its current step; a second one ends it at
// once.
#pragma once

#include <csignal>

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

// SIGPIPE does nothing while this lives, so that a run goes on when the reader of its messages has
// gone; writes fail instead.
class IgnorePipeSignal {
 public:
  IgnorePipeSignal();
  ~IgnorePipeSignal();
  IgnorePipeSignal(const IgnorePipeSignal&) = delete;
  IgnorePipeSignal& operator=(const IgnorePipeSignal&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace tilefold
