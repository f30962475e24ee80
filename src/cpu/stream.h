// The CPU's stream: a pool of threads and their scratch. Every op has finished when it returns.
#pragma once

#include "base/parallel.h"
#include "device/device.h"

namespace tilefold::cpu {

class CpuStream : public Stream {
 public:
  explicit CpuStream(int threads) : pool_(threads) {}
  void synchronize() override {}
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
};

inline ThreadPool& pool_of(Stream& stream) { return static_cast<CpuStream&>(stream).pool(); }

}  // namespace tilefold::cpu
