// In place of mpi.cc in a build without MPI.
#include "base/error.h"
#include "comm/mpi.h"

namespace tilefold {

std::string mpi_absence() {
  return "this build has no MPI: install an MPI library (libopenmpi-dev) and configure again";
}

std::string mpi_version() { return {}; }

std::unique_ptr<Communicator> open_mpi(int*, char***, int launched) {
  throw Error(str("started as ", launched, " ranks, but ", mpi_absence(),
                  "; as it is, each of them would be a run of its own of 1 rank"));
}

}  // namespace tilefold
