#include "trainer/cli/doctor.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/parallel.h"
#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/mpi.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tilefold {
namespace {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "processor of unknown name";
}

// y = x W^T of whole numbers so small that every order of summation is exact.
bool multiplies_right(Device& device) {
  constexpr std::int64_t kSize = 96;
  const LinearProblem problem{.tokens = kSize, .in = kSize, .out = kSize};
  const std::int64_t workspace = linear_workspace(problem, device.info());
  const auto memory = device.allocate(3 * kSize * kSize * 4 + workspace);
  float* x = reinterpret_cast<float*>(memory->data());  // [96, 96] each
  float* weight = x + kSize * kSize;
  float* y = weight + kSize * kSize;
  const auto x_at = [](std::int64_t t, std::int64_t i) { return (7 * t + 3 * i) % 11 - 5; };
  const auto weight_at = [](std::int64_t o, std::int64_t i) { return (5 * o + 2 * i) % 13 - 6; };
  for (std::int64_t t = 0; t < kSize; ++t)
    for (std::int64_t i = 0; i < kSize; ++i) {
      x[t * kSize + i] = static_cast<float>(x_at(t, i));
      weight[t * kSize + i] = static_cast<float>(weight_at(t, i));
    }
  const auto stream = device.make_stream();
  ops::linear_forward({device, *stream},
                      {.x = ConstTensor(x, DType::f32, {kSize, kSize}),
                       .weight = ConstTensor(weight, DType::f32, {kSize, kSize}),
                       .bias = {},
                       .y = Tensor(y, DType::f32, {kSize, kSize}),
                       .epilogue = Epilogue::none,
                       .pre = {},
                       .workspace = {reinterpret_cast<std::byte*>(y + kSize * kSize),
                                     static_cast<std::size_t>(workspace)}});
  stream->synchronize();
  for (std::int64_t t = 0; t < kSize; ++t)
    for (std::int64_t o = 0; o < kSize; ++o) {
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < kSize; ++i) sum += x_at(t, i) * weight_at(o, i);
      if (y[t * kSize + o] != static_cast<float>(sum)) return false;
    }
  return true;
}

RankFacts facts_of(const Communicator& comm) {
  const auto device = open_cpu_device(1);
  RankFacts facts;
  gethostname(facts.host, sizeof facts.host - 1);
  facts.local_rank = comm.local_rank();
  facts.local_size = comm.local_size();
  facts.host_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.allowed_cores = allowed_cores();
  const HostMemory memory = host_memory();
  facts.memory_bytes = memory.total;
  facts.available_bytes = memory.available;
  facts.limit_bytes = memory.container_available;
  struct statvfs shared;
  if (statvfs("/dev/shm", &shared) == 0)
    facts.shared_free_bytes = static_cast<std::int64_t>(shared.f_bavail * shared.f_frsize);
  facts.multiplies_right = multiplies_right(*device);
  facts.folder_writable = access(".", W_OK) == 0;
  return facts;
}

void print_build() {
  std::printf("processor  %s\n", processor_name().c_str());
  std::printf("computes   %s\n", describe_cpu_backend().c_str());
  const std::string absence = mpi_absence();
  std::printf("mpi        %s\n", absence.empty() ? mpi_version().c_str() : absence.c_str());
}

void print_ranks(const std::vector<RankFacts>& ranks, const Launch& launch) {
  std::printf("ranks      %zu (%s)\n", ranks.size(),
              launch.variable.empty() ? "no launcher" : launch.variable.c_str());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFacts& r = ranks[rank];
    const std::string limit = r.limit_bytes > 0
                                  ? str(", ", static_cast<double>(r.limit_bytes >> 20) / 1024,
                                        " GiB left to its container")
                                  : "";
    std::printf(
        "rank %-5zu %s: %d of %d cores allowed, %d thread%s; memory %.1f GB, %.1f GB available%s\n",
        rank, r.host, r.allowed_cores, r.host_cores, std::max(1, r.allowed_cores / r.local_size),
        r.allowed_cores / r.local_size > 1 ? "s" : "", static_cast<double>(r.memory_bytes) * 1e-9,
        static_cast<double>(r.available_bytes) * 1e-9, limit.c_str());
  }
}

int report(const std::vector<Finding>& found) {
  int faults = 0;
  for (const Finding& finding : found) {
    std::printf("%s %s\n", finding.fault ? "FAULT     " : "note      ", finding.text.c_str());
    faults += finding.fault;
  }
  if (faults == 0) std::printf("all is well%s\n", found.empty() ? "" : ", see the notes");
  return faults;
}

// Every rank's, in rank order.
template <class Facts>
std::vector<Facts> gathered(Communicator& comm, const Facts& mine) {
  std::vector<Facts> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

void doctor() {
  const Launch launch = detect_launch();
  int faults = 0;
  {
    const std::unique_ptr<Communicator> comm = open_communicator(nullptr, nullptr);
    const std::vector<RankFacts> all = gathered(*comm, facts_of(*comm));
    const std::vector<GpuFacts> gpus = gathered(*comm, gpu_facts(*comm));
    if (comm->rank() == 0) {
      print_build();
      print_ranks(all, launch);
      print_gpus(gpus);
      std::fflush(stdout);  // shown even if the sums hang
    }
    const std::vector<GpuSums> sums = gathered(*comm, gpu_sums(*comm, gpus));
    if (comm->rank() == 0) {
      print_sums(sums[0]);
      std::vector<Finding> found = examine(all);
      const std::vector<Finding> of_gpus = examine_gpus(gpus, sums);
      found.insert(found.end(), of_gpus.begin(), of_gpus.end());
      std::stable_sort(found.begin(), found.end(),
                       [](const Finding& a, const Finding& b) { return a.fault > b.fault; });
      faults = report(found);
    }
  }
  require(faults == 0, "doctor found ", faults, faults == 1 ? " fault" : " faults",
          "; each says above what to do");
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  app.add_subcommand(
         "doctor",
         "Show what this machine, this build and this launch offer, and what is wrong.\n"
         "Under mpirun it shows every rank.")
      ->callback(doctor);
}

}  // namespace tilefold
