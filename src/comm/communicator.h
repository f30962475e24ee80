// Ranks that work together. One rank, MPI between hosts' memories, NCCL between devices'.
//
// Every rank makes the same calls in the same order with the same sizes. A sum in host memory adds the
// ranks' values in rank order, in double, and rounds once, so it is the same bits on every rank and
// from run to run, and depends neither on timing nor on how gradients are cut into buckets. A sum in
// a GPU's memory is made by NCCL in the values' own type, in the order of its rings, which are pinned
// (nccl.cc): the same bits on every rank and from run to run of the same ranks, buckets and machine. A
// maximum with a NaN among its values is NaN. Calls allocate nothing once the largest number of sums
// in flight was seen.
//
// A rank that fails must call abort(), which ends the other ranks with a non-zero status. Where an
// exception destroys the communicator, it waits a moment whether all ranks are leaving, and aborts if
// not. A rank that dies or stops is noticed by the heartbeat (heartbeat.h). Ranks that wait for another
// one longer than TILEFOLD_COMM_TIMEOUT seconds (environment; default 1800) end the job. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/tensor.h"

namespace tilefold {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks of this host
  virtual int local_size() const = 0;
  // Memory that it holds beside the plan, for sums; fixed when it is opened.
  virtual std::int64_t buffer_bytes() const = 0;
  // What its library took of the device's memory when it was opened, by the driver's count.
  virtual std::int64_t device_bytes() const { return 0; }

  // Host memory. Sums (maxima) over ranks, in place.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<double> values) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Each rank's bytes, in rank order; REQUIRES: all.size() == size() * mine.size().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void barrier() = 0;

  // Gradient buckets: starts a sum of `values` (f32 or f64, dense) over ranks in place, in the
  // background where the transport can, after what the stream of computation holds so far; that
  // stream's work after wait() sees all that were started. No other call comes between them. Memory
  // of the host, or of the GPU of open_device_communicator().
  virtual void start_sum(Tensor values) = 0;
  virtual void wait() = 0;
  // Halves of a sum, for state that is spread over ranks: as start_sum() in all else. Rank r's part of
  // n elements is [r n / P, (r + 1) n / P). REQUIRES: P divides n.
  // After the first each rank has the sum in its own part, and no promise is made for the rest.
  virtual void start_scatter(std::span<const Tensor> values) = 0;
  // After the second each rank has every rank's part. Any dtype.
  virtual void start_gather(std::span<const Tensor> values) = 0;

  // Ends the whole job with this exit status, after a message naming the rank.
  [[noreturn]] virtual void abort(int status, const std::string& why) = 0;
};

// Reads the launcher's environment. Without a launcher: one rank. With one, and a build without MPI
// or a library that sees another world size: Error with both numbers.
std::unique_ptr<Communicator> open_communicator(int* argc, char*** argv);

class Device;
class Stream;
// Collective. The same ranks, with sums in the memory of `device` behind the work of `compute`; null
// where `host` serves as it is (one rank, or the CPU). All three outlive it. Throws Error if ranks
// on GPUs find no NCCL in this build.
std::unique_ptr<Communicator> open_device_communicator(Communicator& host, Device& device,
                                                       Stream& compute);

}  // namespace tilefold
