// The CPU device: memory from mmap, copies by memcpy, and the backend table.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/host_memory.h"
#include "base/round.h"
#include "cpu/attention/tile_kernels.h"
#include "cpu/blas.h"
#include "cpu/ops.h"
#include "cpu/stream.h"
#include "device/device.h"

namespace tilefold {
namespace {

constexpr Backend kBackend = {
    .attention_forward = cpu::attention_forward,
    .attention_backward = cpu::attention_backward,
    .linear_forward = cpu::linear_forward,
    .linear_backward = cpu::linear_backward,
    .residual_norm_forward = cpu::residual_norm_forward,
    .residual_norm_backward = cpu::residual_norm_backward,
    .swiglu_forward = cpu::swiglu_forward,
    .swiglu_backward = cpu::swiglu_backward,
    .rope = cpu::rope,
    .embedding_forward = cpu::embedding_forward,
    .embedding_backward = cpu::embedding_backward,
    .loss_head = cpu::loss_head,
    .grad_square_sum = cpu::grad_square_sum,
    .adamw = cpu::adamw,
    .cache_append = cpu::cache_append,
    .normed_linear = cpu::normed_linear,
    .linear_add = cpu::linear_add,
    .likeliest = cpu::likeliest,
    .fill = cpu::fill,
    .copy = cpu::copy,
};

class MappedMemory : public Memory {
 public:
  // `counter` is told what the system hands out and gets back.
  MappedMemory(std::int64_t bytes, std::int64_t* counter) : counter_(counter) {
    bytes_ = round_up(bytes, sysconf(_SC_PAGESIZE));
    if (bytes_ == 0) return;
    void* at = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(at != MAP_FAILED, "the system refuses ", bytes_, " bytes of memory (",
            std::strerror(errno), "); ", host_memory().usable(), " bytes are available");
    data_ = static_cast<std::byte*>(at);
    *counter_ += bytes_;
  }
  ~MappedMemory() override {
    if (data_ == nullptr) return;
    munmap(data_, static_cast<std::size_t>(bytes_));
    *counter_ -= bytes_;
  }

 private:
  std::int64_t* counter_;
};

// Ops have finished when they return.
class CpuEvent : public Event {
 public:
  void record(Stream&) override {}
  void wait() override {}
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads > 0 ? threads : allowed_cores()) {
    cpu::prepare_blas();  // the parallelism is ours: bits do not depend on it
    cpu::require_blas_buffers(threads_);
    info_.kind = DeviceKind::cpu;
    info_.name = str("cpu, ", threads_, threads_ == 1 ? " thread" : " threads");
    info_.memory_bytes = host_memory().usable_total();
    info_.processors = threads_;
    const std::int64_t l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    info_.shared_bytes = l2 > 0 ? l2 : 1 << 20;
  }

  const DeviceInfo& info() const override { return info_; }
  const Backend& backend() const override { return kBackend; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<cpu::CpuStream>(threads_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override {
    constexpr std::int64_t kArena = 1 << 20;  // smaller ones do not crowd anyone out
    auto memory = std::make_unique<MappedMemory>(bytes, &allocated_);
    if (bytes >= kArena) cpu::require_blas_buffers(threads_);
    return memory;
  }
  std::unique_ptr<Memory> allocate_host(std::int64_t bytes) override {
    return std::make_unique<MappedMemory>(bytes, &host_allocated_);
  }
  std::int64_t allocated_bytes() const override { return allocated_; }
  std::int64_t free_bytes() const override { return host_memory().usable(); }

  void copy_to_device(Stream&, void* dst, const void* src, std::int64_t bytes) override {
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  }
  void copy_to_host(Stream&, void* dst, const void* src, std::int64_t bytes) override {
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  }

 private:
  int threads_;
  DeviceInfo info_;
  std::int64_t allocated_ = 0, host_allocated_ = 0;
};

}  // namespace

std::string describe_cpu_backend() {
  return str("attention ", cpu::tile_kernels<float>().name, "; OpenBLAS ", cpu::blas_code(),
             " kernels");
}

std::unique_ptr<Device> open_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace tilefold
