// What the driver tells of the GPUs of this host.
#include "device/gpus.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "base/error.h"
#include "kernels/tile/check.h"

namespace tilefold {
namespace {

using tile::check;

// The first word of the driver's line that looks like "580.159.04"; empty if it has no such file.
std::string driver_version() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string word;
  while (in >> word)
    if (std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos)
      return word;
  return "of unknown version";
}

std::string cuda_version(int code) { return str(code / 1000, ".", code % 1000 / 10); }

}  // namespace

std::string gpu_pci_address(int ordinal) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), ordinal));
  std::string address(text.data());
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

std::string gpu_link(int from, int to) {
  int peers = 0, atomics = 0;
  check(cudaDeviceGetP2PAttribute(&peers, cudaDevP2PAttrAccessSupported, from, to));
  check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to));
  if (!peers) return "through the host";
  return atomics ? "NVLink" : "PCIe";
}

std::string gpu_software() {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return str("no driver, toolkit ", cuda_version(runtime));
  return str("driver ", driver_version(), " for CUDA ", cuda_version(driver), ", toolkit ",
             cuda_version(runtime));
}

}  // namespace tilefold
