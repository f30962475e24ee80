// A thread that no signal reaches: signals are the main thread's.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace tilefold {

template <class Body>
std::thread quiet_thread(Body body) {
  sigset_t all, before;  // a new thread inherits the mask of the one that makes it
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tilefold
