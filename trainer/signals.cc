#include "trainer/signals.h"

#include <array>
#include <csignal>

namespace tilefold {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};
volatile std::sig_atomic_t g_received = 0;  // a handler can reach nothing else
std::array<struct sigaction, kSignals.size()> g_before;

void remember(int signal) { g_received = signal; }

}  // namespace

StopSignals::StopSignals() {
  g_received = 0;
  struct sigaction action = {};
  action.sa_handler = remember;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the second one is not caught
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &g_before[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int StopSignals::received() const { return g_received; }

IgnorePipeSignal::IgnorePipeSignal() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before_);
}

IgnorePipeSignal::~IgnorePipeSignal() { sigaction(SIGPIPE, &before_, nullptr); }

}  // namespace tilefold
