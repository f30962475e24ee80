// The GPUs of this host as the driver shows them, without opening one: for the map from ranks to
// GPUs and for diagnosis. In a build without CUDA there are none. Defined in kernels.
#pragma once

#include <string>

namespace tilefold {

// Whether the driver's device file is there, be it that CUDA sees a GPU or not. Defined in
// src/device.
bool has_nvidia_driver();

// "0000:1b:00.0": tells GPUs of a host apart, whatever CUDA_VISIBLE_DEVICES shows to whom.
// REQUIRES: 0 <= ordinal < cuda_device_count().
std::string gpu_pci_address(int ordinal);
// How two GPUs of this process reach each other: "NVLink", "PCIe" (peer access without NVLink's
// atomics) or "through the host".
std::string gpu_link(int from, int to);
// "driver 580.159.04 for CUDA 13.0, toolkit 13.0"; why there is none, in a build without CUDA.
std::string gpu_software();

}  // namespace tilefold
