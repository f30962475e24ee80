// Notices ranks that died or stopped, whatever the main thread is doing.
//
// A thread of its own on each rank beats once a second over TCP: rank 0 with every other, so P ranks
// need P - 1 connections. It touches neither MPI nor the GPU, allocates nothing and takes no lock that
// the main thread holds for long; a long save or a full GPU queue does not silence it.
//
//   connection ends without leave()   the rank died:            the job ends at once
//   no beat for `limit` seconds       the rank stopped, or its host is gone:  the job ends
//
// "Ends" means: one line on stderr naming the rank, word to the other ranks, and _Exit(1) on every rank
// that still runs, upon which the launcher ends whatever is left. A thread that was itself held up (a
// stopped process that goes on, a machine that slept) believes nobody silent until it has listened
// for a whole limit again.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tilefold {

class Communicator;

class Heartbeat {
 public:
  // Collective over `comm`. Throws Error if TILEFOLD_HEARTBEAT is no number of seconds; rank 0's counts.
  // Ranks that cannot reach rank 0 say so once and are not watched.
  explicit Heartbeat(Communicator& comm);
  // Leaves, if leave() was not called.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // From here on the end of this rank alarms nobody: it finished, or it is about to end the job itself
  // (`aborting`: then the others end too, after a few seconds, should the launcher not do it).
  void leave(bool aborting) noexcept;

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

// Silence after which a rank counts as stopped, from TILEFOLD_HEARTBEAT: seconds, default 15, at least
// 3; 0 switches the heartbeat off.
std::chrono::seconds heartbeat_limit();

}  // namespace tilefold
