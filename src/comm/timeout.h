// How long ranks wait for each other.
#pragma once

#include <chrono>

namespace tilefold {

// TILEFOLD_COMM_TIMEOUT: seconds, default 1800, so that slow saves do not trip it. Throws Error if it is
// no number above 0.
std::chrono::seconds comm_timeout();

}  // namespace tilefold
