// Ranks over NCCL, between the memories of GPUs.
//
//   start_sum   the communication stream waits for what the compute stream holds by now, then sums
//   wait        the compute stream waits for the sums; the host does not
//
//   compute    ... layer 3 | layer 2 | layer 1 | layer 0 |  wait | update
//   communication          | sum 3   | sum 2   | sum 1   | sum 0 |
//
// NCCL's order of additions follows from algorithm, protocol and number of channels, which it would
// choose by size and by what it finds; here they are fixed before it starts, so that equal inputs
// give equal bits from run to run. What the environment (NCCL_ALGO, NCCL_PROTO, NCCL_MIN_CTAS, ...)
// says comes first, and NVLink multicast (NCCL_NVLS_ENABLE) is left to it alone: rings do not use
// it.
#include "comm/nccl.h"

#include <nccl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/part.h"
#include "comm/quiet_thread.h"
#include "comm/timeout.h"

namespace tilefold {
namespace {

using Clock = std::chrono::steady_clock;

// Thread blocks, one a channel, each of which takes a multiprocessor while a sum runs. Between two
// H200s 8, 16, 24, 32 of them gave 140, 201, 226, 234 GB/s at 16 MiB and 158, 272, 330, 342 at 1
// GiB; what NCCL chooses itself 224 and 329. (LL128 in place of Simple, with 16: 181 and 238.)
constexpr int kChannels = 24;

void check(cudaError_t status, const char* call) {
  require(status == cudaSuccess, call, ": ", cudaGetErrorString(status));
}
void check(ncclResult_t status, const char* call, ncclComm_t comm = nullptr) {
  require(status == ncclSuccess, call, ": ", ncclGetErrorString(status), ": ",
          ncclGetLastError(comm));
}

bool set(const char* name) { return std::getenv(name) != nullptr; }

ncclConfig_t pinned() {
  setenv("NCCL_ALGO", "Ring", 0);
  setenv("NCCL_PROTO", "Simple", 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (!set("NCCL_MIN_CTAS") && !set("NCCL_MAX_CTAS") && !set("NCCL_MIN_NCHANNELS") &&
      !set("NCCL_MAX_NCHANNELS"))
    config.minCTAs = config.maxCTAs = kChannels;
  return config;
}

// Ends the job when NCCL reports an error or a sum takes longer than a rank may be waited for, on a
// thread of its own, for nobody else waits on the host. Looks once a second.
class Watch {
 public:
  Watch(Communicator& host, ncclComm_t comm, int gpu)
      : rank_(host.rank()), size_(host.size()), comm_(comm), limit_(comm_timeout()) {
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreate");
    thread_ = quiet_thread([this, gpu] { run(gpu); });
  }
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_one();
    thread_.join();
    cudaEventDestroy(done_);
  }

  cudaEvent_t done() const { return done_; }
  // done() was recorded behind sums.
  void started() { since_ = Clock::now().time_since_epoch().count(); }

 private:
  void run(int gpu) {
    cudaSetDevice(gpu);
    // Or a query here would spoil a graph that another thread captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_; })) {
      ncclResult_t error = ncclSuccess;
      if (ncclCommGetAsyncError(comm_, &error) == ncclSuccess && error != ncclSuccess &&
          error != ncclInProgress)
        end(str("NCCL: ", ncclGetErrorString(error), ": ", ncclGetLastError(comm_)));
      Clock::rep since = since_;
      if (since == 0) continue;
      if (cudaEventQuery(done_) != cudaErrorNotReady)
        since_.compare_exchange_strong(since, 0);
      else if (Clock::now() - Clock::time_point(Clock::duration(since)) > limit_)
        end(str("no answer from other ranks for ", limit_.count(), " s: a sum of gradients"));
    }
  }

  [[noreturn]] void end(const std::string& why) {
    std::fprintf(stderr, "tilefold: rank %d of %d: %s; ending all ranks\n", rank_, size_,
                 why.c_str());
    std::_Exit(EXIT_FAILURE);  // the driver stops what hangs on the GPU, the heartbeat the others
  }

  const int rank_, size_;
  const ncclComm_t comm_;
  const std::chrono::seconds limit_;
  cudaEvent_t done_ = nullptr;
  std::atomic<Clock::rep> since_ = 0;  // of the latest sums not known to be done; 0: none
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(Communicator& host, Device& device, Stream& compute)
      : host_(host), compute_(static_cast<cudaStream_t>(compute.native())) {
    expect(compute_ != nullptr, "NCCL needs a GPU's stream");
    const std::int64_t free = device.free_bytes();
    ncclConfig_t config = pinned();
    ncclUniqueId id{};
    if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    check(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config),
          "ncclCommInitRank");
    // The sums go first where their thread blocks and backward's compete for a multiprocessor.
    int least = 0, most = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, most), "cudaStreamCreate");
    check(cudaEventCreateWithFlags(&queued_, cudaEventDisableTiming), "cudaEventCreate");
    int gpu = 0;
    check(cudaGetDevice(&gpu), "cudaGetDevice");
    watch_ = std::make_unique<Watch>(host, comm_, gpu);
    first_sum(device);
    device_bytes_ = free - device.free_bytes();
  }

  ~NcclCommunicator() override {
    watch_.reset();
    // Destroying waits for sums that never end where another rank has left.
    if (std::uncaught_exceptions() > exceptions_at_birth_)
      ncclCommAbort(comm_);
    else
      ncclCommDestroy(comm_);
    cudaEventDestroy(queued_);
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  int local_size() const override { return host_.local_size(); }
  std::int64_t buffer_bytes() const override { return host_.buffer_bytes(); }
  std::int64_t device_bytes() const override { return device_bytes_; }

  void all_reduce_sum(std::span<double> values) override { host_.all_reduce_sum(values); }
  void all_reduce_max(std::span<double> values) override { host_.all_reduce_max(values); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    host_.all_gather(mine, all);
  }
  void barrier() override { host_.barrier(); }

  void start_sum(Tensor values) override {
    expect(values.dense() && (values.dtype == DType::f32 || values.dtype == DType::f64),
           "start_sum needs dense f32 or f64");
    follow_compute();
    check(ncclAllReduce(values.data, values.data, static_cast<std::size_t>(values.numel()),
                        values.dtype == DType::f32 ? ncclFloat32 : ncclFloat64, ncclSum, comm_,
                        stream_),
          "ncclAllReduce", comm_);
  }

  void start_scatter(std::span<const Tensor> values) override {
    follow_compute();
    check(ncclGroupStart(), "ncclGroupStart");
    for (const Tensor& t : values) {
      const Tensor own = part_of(t, rank(), size());
      check(ncclReduceScatter(t.data, own.data, static_cast<std::size_t>(own.numel()),
                              t.dtype == DType::f32 ? ncclFloat32 : ncclFloat64, ncclSum, comm_,
                              stream_),
            "ncclReduceScatter", comm_);
    }
    check(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }

  void start_gather(std::span<const Tensor> values) override {
    follow_compute();
    check(ncclGroupStart(), "ncclGroupStart");
    for (const Tensor& t : values) {
      const Tensor own = part_of(t, rank(), size());
      check(ncclAllGather(own.data, t.data, static_cast<std::size_t>(own.bytes()), ncclUint8, comm_,
                          stream_),
            "ncclAllGather", comm_);
    }
    check(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }

  void wait() override {
    check(cudaEventRecord(watch_->done(), stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(compute_, watch_->done(), 0), "cudaStreamWaitEvent");
    watch_->started();
  }

  [[noreturn]] void abort(int status, const std::string& why) override {
    host_.abort(status, why);
    std::_Exit(status);
  }

 private:
  void follow_compute() {
    check(cudaEventRecord(queued_, compute_), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, queued_, 0), "cudaStreamWaitEvent");
  }

  // NCCL connects and takes its buffers when it is first used: now, so that they can be counted.
  void first_sum(Device& device) {
    constexpr std::int64_t kCount = 1 << 20;  // all channels take part
    const auto memory = device.allocate(kCount * 4);
    check(cudaMemsetAsync(memory->data(), 0, kCount * 4, compute_), "cudaMemsetAsync");
    start_sum(Tensor(memory->data(), DType::f32, {kCount}));
    wait();
    check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
  }

  Communicator& host_;
  const cudaStream_t compute_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of the sums
  cudaEvent_t queued_ = nullptr;   // what the compute stream held when a sum was started
  std::int64_t device_bytes_ = 0;
  std::unique_ptr<Watch> watch_;
};

}  // namespace

std::string nccl_absence() { return {}; }

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "NCCL of unknown version";
  return str("NCCL ", code / 10000, ".", code / 100 % 100, ".", code % 100);
}

std::unique_ptr<Communicator> open_nccl(Communicator& host, Device& device, Stream& compute) {
  return std::make_unique<NcclCommunicator>(host, device, compute);
}

}  // namespace tilefold
