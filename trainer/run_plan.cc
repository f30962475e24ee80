#include "trainer/run_plan.h"

#include <algorithm>

#include "base/error.h"

namespace tilefold {
namespace {

constexpr std::int64_t kGuardBytes = 256;  // behind every tensor, when memory.check watches them

PhaseShape shape_of(const Config& config, std::int64_t samples, std::int64_t documents) {
  PhaseShape shape;
  shape.samples = samples;
  shape.seq = config.model.context;
  shape.documents = documents;
  return shape;
}

}  // namespace

BatchSplit split_batch(const TrainConfig& train, int world) {
  BatchSplit split;
  split.global = train.global_batch;
  if (split.global % world != 0)
    throw UsageError(str("train.global_batch is ", split.global, ", which does not divide over ",
                         world, " ranks; allowed: a multiple of ", world));
  split.per_rank = split.global / world;
  split.micro = std::min(train.micro_batch, split.per_rank);
  if (split.per_rank % split.micro != 0)
    throw UsageError(str("train.micro_batch is ", train.micro_batch,
                         ", but each rank works through ", split.per_rank,
                         " sequences a step (global_batch ", split.global, " over ", world,
                         world == 1 ? " rank" : " ranks", "); allowed: a divisor of ",
                         split.per_rank, ", or more than it"));
  split.micros = split.per_rank / split.micro;
  return split;
}

RunPlan plan_training(const Config& config, const DeviceInfo& device, int world,
                      std::int64_t most_documents) {
  const BatchSplit split = split_batch(config.train, world);
  RunPlan run;
  run.model = std::make_unique<Model>(config.model, config.attention, device);
  PlanBuilder builder;
  run.shards = config.parallel.shard_optimizer ? world : 1;
  run.model->declare_weights(builder, true, run.shards);
  run.state = builder.persistent("step", "state", {sizeof(StepState)}, DType::u8, Kind::input);
  run.grad_square_sum =
      builder.persistent("step", "grad_square_sum", {1}, DType::f64, Kind::optimizer);

  PhaseShape shape = shape_of(config, split.micro, split.micro * most_documents);
  run.model->declare_train(builder, shape);
  shape.row_constants = config.checkpoint.row_constants;
  run.model->declare_eval(builder, shape);

  run.update_phase = builder.phase("update");
  std::int64_t elements = 0;
  for (const Parameter& parameter : run.model->parameters())
    elements += parameter.shape.numel() / run.shards;
  const std::int64_t bytes = grad_square_sum_workspace(
      elements, static_cast<std::int64_t>(run.model->parameters().size()), device);
  run.update_workspace = builder.scratch("step", "grad_square_sum_workspace", {bytes}, DType::u8,
                                         Kind::workspace, 0, 0);
  PlanOptions options;
  if (config.memory.check) options.guard_bytes = kGuardBytes;
  run.plan = builder.build(options);
  return run;
}

RunPlan plan_evaluation(const Config& config, const DeviceInfo& device, std::int64_t samples,
                        std::int64_t documents) {
  RunPlan run;
  run.model = std::make_unique<Model>(config.model, config.attention, device);
  PlanBuilder builder;
  run.model->declare_weights(builder, false);
  PhaseShape shape = shape_of(config, samples, documents);
  shape.row_constants = config.checkpoint.row_constants;
  run.model->declare_eval(builder, shape);
  run.plan = builder.build();
  return run;
}

RunPlan plan_generation(const Config& config, const DeviceInfo& device, std::int64_t samples,
                        std::int64_t cache_length) {
  RunPlan run;
  run.model = std::make_unique<Model>(config.model, config.attention, device);
  PlanBuilder builder;
  run.model->declare_weights(builder, false);
  run.model->declare_generate(builder, samples, cache_length);
  run.plan = builder.build();
  return run;
}

Config with_naive_attention(Config config) {
  config.attention.strategy = AttentionStrategy::naive;
  return config;
}

std::optional<RunPlan> plan_naive_training(const Config& config, const DeviceInfo& device,
                                           int world, std::int64_t most_documents) {
  try {
    return plan_training(with_naive_attention(config), device, world, most_documents);
  } catch (const UsageError&) {
    return {};
  }
}

}  // namespace tilefold
