// Looks at a foreign HDF5 file in a child process first. libhdf5 1.10 can crash or spin on damaged
// files (measured: 14 of 10,240 single-byte changes of a small file); a child that crashes or
// exceeds its time makes an Error here instead.
#pragma once

#include <string>

#include "base/parallel.h"

namespace tilefold {

// Runs `look` in a forked child; rethrows its Error, and throws Error naming `path` when the child
// crashes, computes for longer than `cpu_seconds`, or is not done after 100 times that (slow disks
// are not damage).
void run_in_child(const std::string& path, int cpu_seconds, FunctionRef<void()> look);

}  // namespace tilefold
