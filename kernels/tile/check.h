// CUDA's status codes as errors that say where.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "base/error.h"

namespace tilefold::tile {

inline void check(cudaError_t status, std::source_location at = std::source_location::current()) {
  if (status != cudaSuccess)
    throw Error(str(at.file_name(), ":", at.line(), ": CUDA: ", cudaGetErrorString(status)));
}

}  // namespace tilefold::tile
