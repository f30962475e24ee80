// The MPI transport. Defined in mpi.cc, or in no_mpi.cc in a build without MPI.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace tilefold {

// Why this build has no MPI, in one sentence; empty if it has.
std::string mpi_absence();
// The library's name and version; empty in a build without MPI.
std::string mpi_version();

// Joins the world that a launcher started (MPI_Init). Throws Error if MPI sees another number of
// ranks than `launched`, or if the build has no MPI. At most one at a time.
std::unique_ptr<Communicator> open_mpi(int* argc, char*** argv, int launched);

}  // namespace tilefold
