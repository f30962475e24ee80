// Ranks that work together. One rank, MPI between hosts' memories, NCCL between devices'.
//
// Every rank makes the same calls in the same order with the same sizes. A sum adds the ranks'
// values in rank order, in double, and rounds once, so it is the same bits on every rank and from
// run to run, and depends neither on timing nor on how gradients are cut into buckets. A maximum
// with a NaN among its values is NaN. Calls allocate nothing once the largest number of sums in
// flight was seen.
//
// A rank that fails must call abort(), which ends the other ranks with a non-zero status. Where an
// exception destroys the communicator, it waits a moment whether all ranks are leaving, and aborts if
// not. Ranks that wait for another one longer than TILEFOLD_COMM_TIMEOUT seconds (environment;
// default 1800) abort the job. Not thread-safe.
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

  // Host memory. Sums (maxima) over ranks, in place.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<double> values) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Each rank's bytes, in rank order; REQUIRES: all.size() == size() * mine.size().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void barrier() = 0;

  // Gradient buckets: starts a sum of `values` (f32 or f64, dense) over ranks in place, in the
  // background where the transport can; wait() finishes all that were started. No other call comes
  // between them.
  virtual void start_sum(Tensor values) = 0;
  virtual void wait() = 0;

  // Ends the whole job with this exit status, after a message naming the rank.
  [[noreturn]] virtual void abort(int status, const std::string& why) = 0;
};

// Reads the launcher's environment. Without a launcher: one rank. With one, and a build without MPI
// or a library that sees another world size: Error with both numbers.
std::unique_ptr<Communicator> open_communicator(int* argc, char*** argv);

}  // namespace tilefold
