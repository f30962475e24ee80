// Who started this process: how many ranks the launcher means to run, from its environment.
#pragma once

#include <string>

#include "base/parallel.h"

namespace tilefold {

struct Launch {
  int size = 1;
  std::string variable;  // the one that said so, "OMPI_COMM_WORLD_SIZE"; empty without a launcher
};

// Looks for Open MPI's mpirun (OMPI_COMM_WORLD_SIZE), process managers that speak PMI (PMI_SIZE:
// MPICH, Intel MPI, Slurm) and Slurm job steps (SLURM_STEP_NUM_TASKS, only beside SLURM_STEP_ID:
// a batch script sees SLURM_NTASKS too, but is itself one process). `get` is std::getenv or a
// test's. Throws Error if the size is no number of at least 1.
Launch detect_launch(FunctionRef<const char*(const char* name)> get);
Launch detect_launch();

}  // namespace tilefold
