// Run under mpirun: what every rank must see, and ways to fail.
//   ranks check [HOSTS]   all reductions against their definition; exit 0 only if every rank agrees
//   ranks throw|exit|kill|stop|skip|unwind [RANK]   rank 1 (or RANK) fails in that way while the
//   others
//                      wait
//   ranks busy|pause   rank 1 computes, or is stopped and goes on, for 5 s, and all is well
//   ranks leave        every rank throws; exit 7
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/reducer.h"

namespace {
std::int64_t allocations = 0;
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace tilefold {
namespace {

// Rank r's value at i: mixed signs and magnitudes, so that order and rounding would show.
template <class T>
T value(int rank, std::int64_t i) {
  const std::uint64_t h = (static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u) ^
                          (static_cast<std::uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9u);
  const std::uint64_t mixed = (h ^ (h >> 29)) * 0x94d049bb133111ebu;
  const double unit = static_cast<double>(mixed >> 11) * 0x1p-53 - 0.5;
  return static_cast<T>(unit * static_cast<double>(std::int64_t{1} << (mixed & 31)));
}

// What start_sum promises: in rank order, in double, rounded once.
template <class T>
T promised_sum(int ranks, std::int64_t i) {
  double sum = value<T>(0, i);
  for (int r = 1; r < ranks; ++r) sum += static_cast<double>(value<T>(r, i));
  return static_cast<T>(sum);
}

template <class T>
void check_start_sum(Communicator& comm, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count) + 1, T(7));  // the last is a guard
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = value<T>(comm.rank(), i);
  comm.start_sum(Tensor(values.data(), dtype_of<T>(), {count}));
  comm.wait();
  for (std::int64_t i = 0; i < count; ++i)
    require(values[static_cast<std::size_t>(i)] == promised_sum<T>(comm.size(), i), "element ", i,
            " of ", count, " is ", values[static_cast<std::size_t>(i)], ", not ",
            promised_sum<T>(comm.size(), i));
  require(values.back() == T(7), "start_sum wrote past its end, count ", count);
}

// The halves: the sum in each rank's part, then everybody's parts, across pieces; guards stay.
void check_parts(Communicator& comm, std::int64_t part) {
  const std::int64_t count = part * comm.size();
  std::vector<float> values(static_cast<std::size_t>(count) + 1, 7.0f),
      small(8 * static_cast<std::size_t>(comm.size()));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = value<float>(comm.rank(), i);
  for (std::size_t i = 0; i < small.size(); ++i)
    small[i] = value<float>(comm.rank(), static_cast<std::int64_t>(i));
  const Tensor both[] = {
      Tensor(values.data(), DType::f32, {count}),
      Tensor(small.data(), DType::f32, {static_cast<std::int64_t>(small.size())})};
  comm.start_scatter(both);
  comm.wait();
  for (std::int64_t i = 0; i < part; ++i) {
    const std::int64_t at = comm.rank() * part + i;
    require(values[static_cast<std::size_t>(at)] == promised_sum<float>(comm.size(), at),
            "start_scatter at ", at, " of ", count);
  }
  comm.start_gather(both);
  comm.wait();
  for (std::int64_t i = 0; i < count; ++i)
    require(values[static_cast<std::size_t>(i)] == promised_sum<float>(comm.size(), i),
            "start_gather at ", i, " of ", count);
  for (std::size_t i = 0; i < small.size(); ++i)
    require(small[i] == promised_sum<float>(comm.size(), static_cast<std::int64_t>(i)),
            "start_gather of the second tensor at ", i);
  require(values.back() == 7.0f, "parts were written past the end, part ", part);
}

void check_small_reductions(Communicator& comm) {
  for (const std::int64_t count : {0, 1, 3, 511, 512, 513, 2000}) {
    std::vector<double> sum(static_cast<std::size_t>(count)), largest = sum;
    for (std::int64_t i = 0; i < count; ++i)
      sum[static_cast<std::size_t>(i)] = largest[static_cast<std::size_t>(i)] =
          value<double>(comm.rank(), i);
    comm.all_reduce_sum(sum);
    comm.all_reduce_max(largest);
    for (std::int64_t i = 0; i < count; ++i) {
      double top = value<double>(0, i);
      for (int r = 1; r < comm.size(); ++r) top = std::max(top, value<double>(r, i));
      require(sum[static_cast<std::size_t>(i)] == promised_sum<double>(comm.size(), i),
              "all_reduce_sum at ", i, " of ", count);
      require(largest[static_cast<std::size_t>(i)] == top, "all_reduce_max at ", i, " of ", count);
    }
  }
  // A NaN on any rank reaches all.
  for (int holder = 0; holder < comm.size(); ++holder) {
    double x = comm.rank() == holder ? std::numeric_limits<double>::quiet_NaN() : 1e300;
    comm.all_reduce_max({&x, 1});
    require(std::isnan(x), "the maximum of a NaN on rank ", holder, " is ", x);
  }
}

void check_bytes(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<std::byte> bytes(1000, static_cast<std::byte>(comm.rank()));
    comm.broadcast(bytes, root);
    for (const std::byte b : bytes) require(b == static_cast<std::byte>(root), "broadcast");
  }
  const std::vector<std::byte> mine(37, static_cast<std::byte>(comm.rank() + 1));
  std::vector<std::byte> all(37 * static_cast<std::size_t>(comm.size()));
  comm.all_gather(mine, all);
  for (std::size_t i = 0; i < all.size(); ++i)
    require(all[i] == static_cast<std::byte>(i / 37 + 1), "all_gather at ", i);
}

// Two uneven layers through buckets of several sizes: the same bits; nothing allocated in a step.
void check_reducer(Communicator& comm) {
  constexpr std::int64_t kFirst = 1'100'000, kSecond = 30'001, kTotal = kFirst + kSecond;
  std::vector<float> grads(kTotal);
  const std::vector<GradientReducer::Layer> layers{
      {{Tensor(grads.data(), DType::f32, {kFirst})}},
      {{Tensor(grads.data() + kFirst, DType::f32, {kSecond})}}};
  for (const std::int64_t bucket_bytes : {std::int64_t{1}, std::int64_t{25} << 20}) {
    GradientReducer reducer(comm, layers, bucket_bytes);
    for (int step = 0; step < 2; ++step) {
      for (std::int64_t i = 0; i < kTotal; ++i)
        grads[static_cast<std::size_t>(i)] = value<float>(comm.rank(), i);
      const std::int64_t before = allocations;
      reducer.ready(1);
      reducer.ready(0);
      reducer.finish();
      require(step == 0 || allocations == before, allocations - before, " allocations in step ",
              step);
      for (std::int64_t i = 0; i < kTotal; ++i)
        require(grads[static_cast<std::size_t>(i)] == promised_sum<float>(comm.size(), i),
                "gradient ", i, " with buckets of ", bucket_bytes);
    }
  }
}

void check(Communicator& comm, int hosts) {
  require(comm.rank() >= 0 && comm.rank() < comm.size(), "rank ", comm.rank());
  require(comm.local_size() * hosts == comm.size() &&
              comm.local_rank() == comm.rank() % comm.local_size(),
          "rank ", comm.rank(), " of ", comm.size(), " on ", hosts,
          " hosts filled one after another is local rank ", comm.local_rank(), " of ",
          comm.local_size());
  require(comm.buffer_bytes() > 0 && comm.buffer_bytes() < (9 << 20), "buffers take ",
          comm.buffer_bytes(), " bytes");
  // Around a piece of 2 MiB, and of many, and fewer elements than ranks.
  for (const std::int64_t count : {0, 1, 2, 7, 1000, 524287, 524288, 524289, 2500000})
    check_start_sum<float>(comm, count);
  for (const std::int64_t count : {1, 5, 262143, 262145}) check_start_sum<double>(comm, count);
  for (const std::int64_t part : {1, 8, 65536, 300001}) check_parts(comm, part);
  check_small_reductions(comm);
  check_bytes(comm);
  check_reducer(comm);
  comm.barrier();
}

// `victim` fails while the others reduce.
void fail(Communicator& comm, std::string_view how, int victim) {
  std::vector<float> grads(3'000'000, 1.0f);
  for (int round = 0;; ++round) {
    if (comm.rank() == victim && round == 2) {
      if (how == "throw") throw Error("planted failure");
      if (how == "exit") std::_Exit(3);
      if (how == "kill") std::raise(SIGKILL);
      if (how == "stop") std::raise(SIGSTOP);
      if (how == "skip") comm.barrier();  // a call that the others do not make
    }
    comm.start_sum(Tensor(grads.data(), DType::f32, {static_cast<std::int64_t>(grads.size())}));
    comm.wait();
  }
}

// Rank 1 keeps the others waiting for 5 s: at work in one call, or stopped by a child of its.
void hold_up(Communicator& comm, std::string_view how) {
  if (comm.rank() == 1) {
    if (how == "pause") {
      const pid_t own = getpid();
      if (fork() == 0) {
        kill(own, SIGSTOP);
        sleep(5);
        kill(own, SIGCONT);
        _exit(0);
      }
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  comm.barrier();
}

int run(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "check";
  const int number = argc > 2 ? std::atoi(argv[2]) : 1;  // of hosts, or of the rank that fails
  const auto comm = open_communicator(&argc, &argv);
  if (mode == "unwind") {  // nobody between the failure and the end of the communicator
    if (comm->rank() == 1) throw Error("planted failure");
    comm->barrier();
    return 0;
  }
  if (mode == "leave") throw Error("on every rank");
  try {
    if (mode == "check")
      check(*comm, number);
    else if (mode == "busy" || mode == "pause")
      hold_up(*comm, mode);
    else
      fail(*comm, mode, number);
  } catch (const std::exception& e) {
    comm->abort(EXIT_FAILURE, e.what());
  }
  if (comm->rank() == 0) std::printf("%d ranks agree\n", comm->size());
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
