// A training run from its config to its last checkpoint.
#pragma once

#include "comm/communicator.h"
#include "trainer/config.h"
#include "trainer/run_directory.h"

namespace tilefold {

// Trains; writes OUT/ (see run_directory.h), shows progress on stderr and the results on stdout
// (rank 0). Every rank calls it. Returns the exit status: 0 when all steps are done, 128 + signal
// when a signal stopped it after saving. Throws Error when a loss or gradient is not finite; the
// last checkpoint then holds the state before it.
int train(const Config& config, ExistingRun existing, Communicator& comm);

}  // namespace tilefold
