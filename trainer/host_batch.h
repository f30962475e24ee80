// The host's side of a micro-batch: arrays that a loader fills, and their way to the device.
#pragma once

#include <cstdint>
#include <memory>

#include "device/arena.h"
#include "device/device.h"
#include "trainer/data/batch_loader.h"
#include "trainer/model/model.h"

namespace tilefold {

// Copies `count` elements to the start of `whole` [count or more] and returns them as a tensor.
// `from` stays as it is until the stream was synchronized.
Tensor upload(Context ctx, const Tensor& whole, const void* from, std::int64_t count);

// Allocates once, for batches of up to `tokens` tokens in `documents` documents (0: not packed).
// Not thread-safe.
class HostBatch {
 public:
  HostBatch(Device& device, std::int64_t tokens, std::int64_t documents);

  const BatchArrays& arrays() const { return arrays_; }
  // Copies what `info` says was filled into the phase's input tensors and describes it. The arrays
  // may be filled again after the stream was synchronized. Throws Error if there are more documents
  // than the phase was planned for.
  Batch upload(Context ctx, const Arena& arena, const Model::Inputs& inputs, const BatchInfo& info,
               std::int64_t context) const;

 private:
  std::unique_ptr<Memory> memory_;
  BatchArrays arrays_;
};

}  // namespace tilefold
