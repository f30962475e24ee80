#include "trainer/train_step.h"

#include <cmath>

#include "ops/ops.h"
#include "trainer/schedule.h"

namespace tilefold {
namespace {

std::vector<GradientReducer::Layer> layers_of(const RunPlan& run, const Arena& arena,
                                              std::int64_t layers) {
  std::vector<GradientReducer::Layer> out(static_cast<std::size_t>(layers) + 2);
  for (const Parameter& p : run.model->parameters())
    out[static_cast<std::size_t>(p.layer_index)].grads.push_back(arena.tensor(p.grad));
  return out;
}

}  // namespace

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

TrainStep::TrainStep(const Config& config, Communicator& comm, const Dataset& data,
                     const RunPlan& run, Arena& arena, Context ctx, std::int64_t consumed)
    : config_(config),
      comm_(comm),
      run_(run),
      arena_(arena),
      ctx_(ctx),
      loader_(data, config.train.global_batch, split_batch(config.train, comm.size()).micro,
              comm.rank(), comm.size(), consumed),
      host_(ctx.device, split_batch(config.train, comm.size()).micro * config.model.context,
            data.packed()),
      reducer_(comm, layers_of(run, arena, config.model.layers)) {
  for (const Parameter& p : run.model->parameters()) {
    AdamWParameter parameter;
    parameter.master = arena.tensor(p.master);
    if (p.weight != p.master) parameter.weight = arena.tensor(p.weight);
    parameter.grad = arena.tensor(p.grad);
    parameter.m = arena.tensor(p.m);
    parameter.v = arena.tensor(p.v);
    parameter.decay = p.decay;
    parameters_.push_back(parameter);
    grads_.push_back(parameter.grad);
  }
}

StepResult TrainStep::operator()(std::int64_t step) {
  StepResult result;
  double targets = static_cast<double>(loader_.count_targets());
  comm_.all_reduce_sum({&targets, 1});
  result.targets = static_cast<std::int64_t>(targets);
  result.lr = learning_rate(config_.train, step);

  StepState state;
  state.seed = static_cast<std::uint64_t>(config_.run.seed);
  state.step = static_cast<std::uint64_t>(step);
  state.target_tokens = targets;
  state.learning_rate = result.lr;
  state.bias_correction1 = 1 - std::pow(config_.train.beta1, static_cast<double>(step + 1));
  state.bias_correction2 = 1 - std::pow(config_.train.beta2, static_cast<double>(step + 1));

  zero_gradients();
  backward_of_global_batch(state);
  update();

  double sums[2];  // loss sum of this rank; square sum, equal on all ranks
  ctx_.device.copy_to_host(ctx_.stream, &sums[0], arena_.tensor(run_.model->train_loss_sum()).data,
                           sizeof(double));
  ctx_.device.copy_to_host(ctx_.stream, &sums[1], arena_.tensor(run_.grad_square_sum).data,
                           sizeof(double));
  ctx_.stream.synchronize();
  comm_.all_reduce_sum({&sums[0], 1});
  loader_.advance();
  if (targets > 0) {
    result.loss = sums[0] / targets;
    result.grad_norm = std::sqrt(sums[1]) / targets;
  }
  return result;
}

void TrainStep::zero_gradients() {
  for (const AdamWParameter& p : parameters_) {
    Fill zero;
    zero.x = Tensor(const_cast<void*>(p.grad.data), p.grad.dtype, p.grad.shape);
    ops::fill(ctx_, zero);
  }
  ops::fill(ctx_, {arena_.tensor(run_.model->train_loss_sum()), 0});
}

void TrainStep::backward_of_global_batch(StepState& state) {
  const Tensor device_state = arena_.tensor(run_.state);
  const std::int64_t micros = loader_.micro_batches();
  for (std::int64_t i = 0; i < micros; ++i) {
    const BatchInfo info = loader_.fill(i, host_.arrays());
    const Batch batch =
        host_.upload(ctx_, arena_, run_.model->train_inputs(), info, config_.model.context);
    state.first_sample = info.first_sample;
    ctx_.device.copy_to_device(ctx_.stream, device_state.data, &state, sizeof state);
    run_.model->train_step(ctx_, arena_, batch, static_cast<const StepState*>(device_state.data),
                           [&](int layer) {
                             if (i == micros - 1) reducer_.ready(layer);
                           });
    ctx_.stream.synchronize();  // the host arrays are filled again
  }
  reducer_.finish();
}

void TrainStep::update() {
  arena_.begin(run_.update_phase);
  arena_.step(0);
  const Tensor workspace = arena_.tensor(run_.update_workspace);
  const Tensor square_sum = arena_.tensor(run_.grad_square_sum);
  GradSquareSum norm;
  norm.grads = grads_;
  norm.sum = square_sum;
  norm.workspace = {static_cast<std::byte*>(workspace.data),
                    static_cast<std::size_t>(workspace.bytes())};
  ops::grad_square_sum(ctx_, norm);

  AdamW adamw;
  adamw.parameters = parameters_;
  adamw.grad_square_sum = square_sum;
  adamw.state = static_cast<const StepState*>(arena_.tensor(run_.state).data);
  adamw.beta1 = config_.train.beta1;
  adamw.beta2 = config_.train.beta2;
  adamw.eps = config_.train.eps;
  adamw.weight_decay = config_.train.weight_decay;
  adamw.clip = config_.train.clip;
  ops::adamw(ctx_, adamw);
  arena_.end();
}

}  // namespace tilefold
