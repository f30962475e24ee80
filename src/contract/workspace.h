// Small sums that the workspace sizes of several ops share.
#pragma once

#include <cstdint>

#include "base/device_info.h"
#include "base/round.h"

namespace tilefold {

// A cache line, so that pieces of a workspace do not share one.
constexpr std::int64_t kWorkspaceAlign = 64;
constexpr std::int64_t align_workspace(std::int64_t bytes) {
  return round_up(bytes, kWorkspaceAlign);
}

// What cuBLASLt is given: 32 MiB from compute capability 9.0 on, 4 MiB before (NVIDIA, cuBLAS
// documentation, cublasSetWorkspace), at an address that is a multiple of 256.
constexpr std::int64_t kMatrixLibraryAlign = 256;
constexpr std::int64_t matrix_library_bytes(const DeviceInfo& device) {
  return device.compute_capability >= 90 ? std::int64_t{32} << 20 : std::int64_t{4} << 20;
}
// The same with room to move to that address.
constexpr std::int64_t matrix_library_workspace(const DeviceInfo& device) {
  return matrix_library_bytes(device) + kMatrixLibraryAlign;
}

}  // namespace tilefold
