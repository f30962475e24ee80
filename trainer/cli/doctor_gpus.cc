#include "trainer/cli/doctor_gpus.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "comm/nccl.h"
#include "device/gpus.h"

namespace tilefold {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCopyBytes = 256 << 20;
constexpr std::int64_t kSmallSum = 16 << 20, kLargeSum = 1 << 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double copy_rate(Device& device) {
  const auto from = device.allocate_host(kCopyBytes), to = device.allocate(kCopyBytes);
  const auto stream = device.make_stream();
  double best = 0;
  for (int i = 0; i < 4; ++i) {  // the first warms up
    const Clock::time_point start = Clock::now();
    device.copy_to_device(*stream, to->data(), from->data(), kCopyBytes);
    stream->synchronize();
    best = std::max(best, static_cast<double>(kCopyBytes) / seconds_since(start));
  }
  return best;
}

// Whole numbers of each rank, whose sums every order of addition gives exactly.
bool sums_right(Communicator& comm, Communicator& sums, Device& device, Stream& stream,
                std::byte* memory) {
  std::vector<float> values(1 << 20);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i % 1013) * static_cast<std::size_t>(comm.rank() + 1));
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  device.copy_to_device(stream, memory, values.data(), bytes);
  sums.start_sum(Tensor(memory, DType::f32, {static_cast<std::int64_t>(values.size())}));
  sums.wait();
  device.copy_to_host(stream, values.data(), memory, bytes);
  stream.synchronize();
  const auto all = static_cast<std::size_t>(comm.size() * (comm.size() + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<float>((i % 1013) * all)) return false;
  return true;
}

// What a ring sends in a direction: 2 (P - 1) / P of the bytes.
double bus_rate(Communicator& comm, Communicator& sums, Stream& stream, std::byte* memory,
                std::int64_t bytes) {
  constexpr int kTimes = 10;
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    comm.barrier();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kTimes; ++i) sums.start_sum(Tensor(memory, DType::f32, {bytes / 4}));
    sums.wait();
    stream.synchronize();
    best = std::max(best, kTimes * static_cast<double>(bytes) / seconds_since(start));
  }
  return best * 2 * (comm.size() - 1) / comm.size();
}

}  // namespace

GpuFacts gpu_facts(Communicator& comm) {
  GpuFacts facts;
  facts.map = map_gpus(comm, cuda_device_count(), gpu_pci_address)[static_cast<std::size_t>(comm.rank())];
  facts.has_driver = has_nvidia_driver();
  if (facts.map.ordinal < 0) return facts;
  const auto device = open_cuda_device(facts.map.ordinal);
  const std::string name = device->info().name;
  std::memcpy(facts.name, name.data(), std::min(name.size(), sizeof facts.name - 1));
  facts.memory_bytes = device->info().memory_bytes;
  facts.free_bytes = device->free_bytes();
  if (facts.free_bytes > 2 * kCopyBytes) facts.from_host = copy_rate(*device);
  return facts;
}

GpuSums gpu_sums(Communicator& comm, const std::vector<GpuFacts>& ranks) {
  GpuSums sums;
  std::vector<RankGpu> map;
  std::int64_t free = ranks[0].free_bytes;
  for (const GpuFacts& rank : ranks) {
    map.push_back(rank.map);
    free = std::min(free, rank.free_bytes);
  }
  sums.large_bytes = std::min(kLargeSum, free / 4 / 4096 * 4096);
  if (comm.size() == 1 || !fault_of(map).empty() || !nccl_absence().empty() ||
      sums.large_bytes < kSmallSum)
    return sums;
  const auto device = open_cuda_device(map[static_cast<std::size_t>(comm.rank())].ordinal);
  const auto stream = device->make_stream();
  const auto nccl = open_nccl(comm, *device, *stream);
  const auto memory = device->allocate(sums.large_bytes);
  sums.right = sums_right(comm, *nccl, *device, *stream, memory->data());
  sums.small_bus = bus_rate(comm, *nccl, *stream, memory->data(), kSmallSum);
  sums.large_bus = bus_rate(comm, *nccl, *stream, memory->data(), sums.large_bytes);
  sums.measured = true;
  return sums;
}

void print_gpus(const std::vector<GpuFacts>& ranks) {
  const int gpus = cuda_device_count();
  std::printf("cuda       %s\n", gpu_software().c_str());
  if (gpus == 0) std::printf("gpu        none: %s\n", std::string(cuda_absence()).c_str());
  for (int i = 0; i < gpus; ++i) {
    std::string links;
    for (int j = 0; j < gpus; ++j)
      if (j != i) links += (links.empty() ? "; to " : ", ") + std::to_string(j) + " " + gpu_link(i, j);
    std::printf("gpu %d      %s%s\n", i, gpu_pci_address(i).c_str(), links.c_str());
  }
  const std::string absence = nccl_absence();
  std::printf("nccl       %s\n", absence.empty() ? nccl_version().c_str() : absence.c_str());
  std::vector<RankGpu> map;
  for (const GpuFacts& rank : ranks) map.push_back(rank.map);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuFacts& r = ranks[rank];
    if (r.map.visible == 0) continue;
    std::printf("%s", line_of(map, rank).c_str());
    if (r.map.ordinal >= 0)
      std::printf(": %s, %.1f GB, %.1f GB free, %.1f GB/s from the host", r.name,
                  static_cast<double>(r.memory_bytes) * 1e-9,
                  static_cast<double>(r.free_bytes) * 1e-9, r.from_host * 1e-9);
    std::printf("\n");
  }
}

void print_sums(const GpuSums& sums) {
  if (!sums.measured) return;
  std::printf("sums       between GPUs: %.0f GB/s a direction at %lld MiB, %.0f GB/s at %lld MiB\n",
              sums.small_bus * 1e-9, static_cast<long long>(kSmallSum >> 20),
              sums.large_bus * 1e-9, static_cast<long long>(sums.large_bytes >> 20));
}

}  // namespace tilefold
