// Everything a run will hold in memory, from its config and the most documents that its data has in
// a sample: the model's tensors and what the step around it needs. No device is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "memory/plan.h"
#include "trainer/config.h"
#include "trainer/model/model.h"

namespace tilefold {

// How a global batch is worked through, in sequences.
struct BatchSplit {
  std::int64_t global = 0;    // a step, over all ranks
  std::int64_t per_rank = 0;  // global / world
  std::int64_t micro = 0;     // a forward: min(train.micro_batch, per_rank)
  std::int64_t micros = 0;    // per_rank / micro
};

// Throws UsageError naming key and numbers where something does not divide.
BatchSplit split_batch(const TrainConfig& train, int world);

// A plan, the model that declared it, and the tensors of the step around the model.
struct RunPlan {
  std::unique_ptr<Model> model;
  Plan plan;
  TensorId state = kNoTensor;             // StepState, u8
  TensorId grad_square_sum = kNoTensor;   // [1] f64
  TensorId update_workspace = kNoTensor;  // of the update phase
  int update_phase = -1;
  int shards = 1;  // into which masters, m and v are cut (parallel.shard_optimizer: one a rank)
};

// Training: train, eval and update phases. REQUIRES: model.vocab and every other size that 0 leaves
// open is resolved. `most_documents`: of a sample, as Dataset's; 0: not packed.
RunPlan plan_training(const Config& config, const DeviceInfo& device, int world,
                      std::int64_t most_documents);
// Weights and an eval phase of `samples` sequences with `documents` documents in all; 0: not
// packed.
RunPlan plan_evaluation(const Config& config, const DeviceInfo& device, std::int64_t samples,
                        std::int64_t documents);
// Weights and the phase of generation with a cache of `cache_length` positions.
RunPlan plan_generation(const Config& config, const DeviceInfo& device, std::int64_t samples,
                        std::int64_t cache_length);

// The same config with attention that materializes its scores: the column of comparison.
Config with_naive_attention(Config config);
// plan_training of that; nothing where the scores are larger than every memory, or the device has
// no such attention.
std::optional<RunPlan> plan_naive_training(const Config& config, const DeviceInfo& device,
                                           int world, std::int64_t most_documents);

}  // namespace tilefold
