// Run under mpirun, one rank a GPU: sums between GPUs against their definition, their speed, and ways
// to fail. Prints SKIPPED: and why where the ranks have no GPU each.
//   gpu_ranks check      exit 0 only if every rank agrees; prints a checksum that no run changes
//   gpu_ranks bench      GB/s of one all-reduce, by size
//   gpu_ranks kill|stop|skip|throw   rank 1 fails in that way while the others wait
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/gpu_of_rank.h"
#include "comm/nccl.h"
#include "comm/reducer.h"
#include "device/device.h"
#include "device/gpus.h"

namespace tilefold {
namespace {

struct Setup {
  Communicator& host;
  Device& device;
  Stream& stream;
  Communicator& comm;  // sums in the GPU's memory
};

// Rank r's value at i: mixed signs, so that order and rounding would show.
float value(int rank, std::int64_t i) {
  const std::uint64_t h = (static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u) ^
                          (static_cast<std::uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9u);
  const std::uint64_t mixed = (h ^ (h >> 29)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<double>(mixed >> 11) * 0x1p-53 - 0.5);
}

std::uint64_t checksum(const std::vector<float>& values) {
  std::uint64_t sum = 0xcbf29ce484222325u;  // FNV-1a over the bits
  for (const float v : values) {
    std::uint32_t bits;
    static_assert(sizeof bits == sizeof v);
    std::memcpy(&bits, &v, sizeof bits);
    sum = (sum ^ bits) * 0x100000001b3u;
  }
  return sum;
}

// All ranks have the same bits, near the sum in double; the checksum of rank 0.
std::uint64_t check_values(const Setup& s, const std::vector<float>& got) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    double sum = 0, magnitude = 0;
    for (int r = 0; r < s.host.size(); ++r) {
      sum += value(r, static_cast<std::int64_t>(i));
      magnitude += std::abs(value(r, static_cast<std::int64_t>(i)));
    }
    require(std::abs(got[i] - sum) <= s.host.size() * 0x1p-24 * magnitude, "element ", i, " of ",
            got.size(), " is ", got[i], ", not ", sum);
  }
  const std::uint64_t mine = checksum(got);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(s.host.size()));
  s.host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (const std::uint64_t other : all) require(other == mine, "ranks differ in their bits");
  return mine;
}

// Two layers through buckets, thrice: equal bits each time, and a guard behind them untouched.
std::uint64_t check_reducer(const Setup& s, std::int64_t first, std::int64_t second,
                            std::int64_t bucket_bytes) {
  const std::int64_t total = first + second;
  const auto memory = s.device.allocate((total + 1) * 4);
  float* grads = reinterpret_cast<float*>(memory->data());  // [total + 1]
  GradientReducer reducer(s.comm,
                          {{{Tensor(grads, DType::f32, {first})}},
                           {{Tensor(grads + first, DType::f32, {second})}}},
                          bucket_bytes);
  std::vector<float> values(static_cast<std::size_t>(total) + 1);
  std::uint64_t sum = 0;
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t i = 0; i < total; ++i)
      values[static_cast<std::size_t>(i)] = value(s.host.rank(), i);
    values.back() = 7;
    s.device.copy_to_device(s.stream, grads, values.data(), (total + 1) * 4);
    reducer.ready(1);
    reducer.ready(0);
    reducer.finish();
    s.device.copy_to_host(s.stream, values.data(), grads, (total + 1) * 4);
    s.stream.synchronize();
    require(values.back() == 7, "a sum wrote past its end");
    const std::uint64_t now = check_values(s, {values.begin(), values.end() - 1});
    require(round == 0 || now == sum, "round ", round, " gave other bits");
    sum = now;
  }
  return sum;
}

void check(const Setup& s) {
  std::uint64_t sum = 0;
  for (const auto& [first, second] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {1000, 24}, {1 << 20, 1 << 18}, {5'000'001, 3}})
    for (const std::int64_t bucket : {std::int64_t{1}, std::int64_t{25} << 20})
      sum = sum * 31 + check_reducer(s, first, second, bucket);
  if (s.host.rank() == 0)
    std::printf("%d ranks agree, checksum %016llx, NCCL took %lld MiB\n", s.host.size(),
                static_cast<unsigned long long>(sum),
                static_cast<long long>(s.comm.device_bytes() >> 20));
}

void bench(const Setup& s) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto memory = s.device.allocate(kMost);
  for (const std::int64_t bytes : {std::int64_t{64} << 10, std::int64_t{1} << 20,
                                   std::int64_t{16} << 20, std::int64_t{25} << 20,
                                   std::int64_t{100} << 20, kMost}) {
    const Tensor values(memory->data(), DType::f32, {bytes / 4});
    const int times = bytes > (std::int64_t{64} << 20) ? 10 : 50;
    std::vector<double> seconds;
    for (int round = 0; round < 6; ++round) {
      s.host.barrier();
      const auto start = Clock::now();
      for (int i = 0; i < times; ++i) s.comm.start_sum(values);
      s.comm.wait();
      s.stream.synchronize();
      if (round > 0)
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / times);
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2], ranks = s.host.size();
    if (s.host.rank() == 0)
      std::printf("%8.2f MiB  %9.1f us  %6.1f GB/s of data  %6.1f GB/s of bus\n",
                  static_cast<double>(bytes) / 0x1p20, median * 1e6,
                  static_cast<double>(bytes) / median * 1e-9,
                  static_cast<double>(bytes) / median * 2e-9 * (ranks - 1) / ranks);
  }
}

void fail(const Setup& s, std::string_view how) {
  constexpr std::int64_t kCount = 25 << 20;
  const auto memory = s.device.allocate(kCount * 4);
  for (int round = 0;; ++round) {
    if (s.host.rank() == 1 && round == 20) {
      if (how == "kill") std::raise(SIGKILL);
      if (how == "stop") std::raise(SIGSTOP);
      if (how == "skip") s.host.barrier();  // a call that the others do not make
      if (how == "throw") throw Error("planted failure");
    }
    s.comm.start_sum(Tensor(memory->data(), DType::f32, {kCount}));
    s.comm.wait();
    s.stream.synchronize();
  }
}

int run(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "check";
  const auto host = open_communicator(&argc, &argv);
  const std::vector<RankGpu> gpus = map_gpus(*host, cuda_device_count(), gpu_pci_address);
  const std::string fault = fault_of(gpus);
  if (!fault.empty() || !nccl_absence().empty()) {
    if (host->rank() == 0)
      std::printf("SKIPPED: %s\n", (fault.empty() ? nccl_absence() : fault).c_str());
    return 0;
  }
  try {
    const auto device =
        open_cuda_device(gpus[static_cast<std::size_t>(host->rank())].ordinal);
    const auto stream = device->make_stream();
    const auto comm = open_nccl(*host, *device, *stream);
    const Setup s{*host, *device, *stream, *comm};
    if (mode == "check")
      check(s);
    else if (mode == "bench")
      bench(s);
    else
      fail(s, mode);
  } catch (const std::exception& e) {
    host->abort(EXIT_FAILURE, e.what());
  }
  return 0;
}

}  // namespace
}  // namespace tilefold

int main(int argc, char** argv) {
  try {
    return tilefold::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 7;
  }
}
