// What the planner and the choice of a kernel need to know of a device. Plain data, so that a plan
// can be made for a device that is not there.
#pragma once

#include <cstdint>
#include <string>

namespace tilefold {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct DeviceInfo {
  DeviceKind kind = DeviceKind::cpu;
  std::string name = "cpu";
  std::int64_t memory_bytes = 0;     // in all
  int processors = 1;                // threads, or multiprocessors
  int compute_capability = 0;        // 90 for 9.0; 0 on the CPU
  std::int64_t shared_bytes = 0;     // shared memory a block can have; on the CPU, a core's L2
  std::int64_t l2_bytes = 0;
  double matrix_flops = 0;  // a second, of large bf16 products on random data, measured; 0: unknown
};

}  // namespace tilefold
