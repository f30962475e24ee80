// A device: where memory is, and the table of ops that run there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/device_info.h"
#include "base/parallel.h"
#include "device/backend.h"

namespace tilefold {

// Ops that were recorded once, to be queued together again and again with the same arguments.
class Recording {
 public:
  virtual ~Recording() = default;
  // Queues them on the stream they were recorded from.
  virtual void replay() = 0;
};

// Work in order. Ops return when the work is queued; synchronize() waits for it. On the CPU an op
// has finished when it returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
  // Records what `work` queues on this stream, which is not done now; null, without a call of
  // `work`, on a device that gains nothing by it (the CPU). REQUIRES: `work` does not synchronize,
  // and what it copies from or to the host lies in allocate_host() memory.
  virtual std::unique_ptr<Recording> record(FunctionRef<void()> work);
  // The stream as the device's own libraries take it (cudaStream_t); null on the CPU.
  virtual void* native() const { return nullptr; }
};

// A mark in a stream's work that the host can wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  // Until what was queued before the last record() is done; at once if there was none.
  virtual void wait() = 0;
};

// Memory from the system (mmap, cudaMalloc), counted by its device where it is handed out.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 protected:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Not thread-safe. Outlives its streams and memory.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const Backend& backend() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  // Device memory; page aligned. Throws Error naming needed and free bytes.
  virtual std::unique_ptr<Memory> allocate(std::int64_t bytes) = 0;
  // Host memory that copies fastest (pinned where that exists); not in allocated_bytes().
  virtual std::unique_ptr<Memory> allocate_host(std::int64_t bytes) = 0;
  // What the system has handed out for allocate() and not got back.
  virtual std::int64_t allocated_bytes() const = 0;
  virtual std::int64_t free_bytes() const = 0;  // what could be allocated now
  // In use on the device, of all programs, as its driver counts; -1 where there is no such figure.
  virtual std::int64_t used_bytes() const { return -1; }

  // In stream order; host memory must live until synchronized.
  virtual void copy_to_device(Stream& stream, void* device_dst, const void* host_src,
                              std::int64_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host_dst, const void* device_src,
                            std::int64_t bytes) = 0;
};

// What ops are called with.
struct Context {
  Device& device;
  Stream& stream;
};

// threads 0: all cores the process may run on. Defined in src/cpu.
std::unique_ptr<Device> open_cpu_device(int threads = 0);
// What it computes with: the instruction set of attention, the BLAS library. Defined in src/cpu.
std::string describe_cpu_backend();
// Throws Error if there is no such GPU or the build has none. Defined in kernels.
std::unique_ptr<Device> open_cuda_device(int ordinal);
// GPUs this build can use: 0 in a build without CUDA. Defined in kernels.
int cuda_device_count();
// Why cuda_device_count() is 0, in one sentence; empty otherwise. Defined in kernels.
std::string_view cuda_absence();

// "cpu", "cuda", or "auto": the GPU when there is one.
std::unique_ptr<Device> open_device(std::string_view name, int ordinal = 0, int threads = 0);
// A described device for plans without one: "cpu", "h200". Throws UsageError with the known names.
DeviceInfo describe_device(std::string_view name);

}  // namespace tilefold
