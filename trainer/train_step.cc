#include "trainer/train_step.h"

#include <cmath>
#include <cstring>

#include "base/part.h"
#include "ops/ops.h"
#include "trainer/schedule.h"

namespace tilefold {
namespace {

constexpr std::int64_t kBucketBytes = 25 << 20;

std::vector<GradientReducer::Layer> layers_of(const RunPlan& run, const Arena& arena,
                                              std::int64_t layers) {
  std::vector<GradientReducer::Layer> out(static_cast<std::size_t>(layers) + 2);
  for (const Parameter& p : run.model->parameters())
    out[static_cast<std::size_t>(p.layer_index)].grads.push_back(arena.tensor(p.grad));
  return out;
}

// Appends `next`, as one range with the last where it follows that in memory.
void add_range(std::vector<Tensor>& ranges, const Tensor& next) {
  if (!ranges.empty()) {
    Tensor& last = ranges.back();
    if (static_cast<std::byte*>(last.data) + last.bytes() == next.data &&
        last.dtype == next.dtype) {
      last = Tensor(last.data, last.dtype, {last.numel() + next.numel()});
      return;
    }
  }
  ranges.emplace_back(next.data, next.dtype, Shape{next.numel()});
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
      outgoing_{open_outgoing(config, comm, data, ctx.device),
                open_outgoing(config, comm, data, ctx.device)},
      reducer_(comm, layers_of(run, arena, config.model.layers), kBucketBytes,
               run.shards > 1 ? GradientReducer::Result::parts : GradientReducer::Result::whole) {
  for (const Parameter& p : run.model->parameters()) {
    AdamWParameter parameter;
    parameter.master = arena.tensor(p.master);
    if (p.weight != p.master) parameter.weight = arena.tensor(p.weight);
    parameter.grad = arena.tensor(p.grad);
    parameter.m = arena.tensor(p.m);
    parameter.v = arena.tensor(p.v);
    parameter.decay = p.decay;
    if (run.shards > 1) own_part(parameter, arena.tensor(p.grad), arena.tensor(p.weight), comm);
    parameters_.push_back(parameter);
    grads_.push_back(parameter.grad);
    add_range(zeroed_, arena.tensor(p.grad));
  }
  for (Pending& pending : pending_) {
    pending.sums = ctx.device.allocate_host(2 * sizeof(double));
    pending.done = ctx.device.make_event();
  }
}

// Narrows an update to the elements whose optimizer state is here. m, v and 16-bit weights' masters
// are planned as parts; the other arrays are whole.
void TrainStep::own_part(AdamWParameter& parameter, const Tensor& grad, const Tensor& weight,
                         const Communicator& comm) {
  const auto part = [&](const Tensor& whole) { return part_of(whole, comm.rank(), comm.size()); };
  if (parameter.weight.data == nullptr)
    parameter.master = part(parameter.master);
  else
    parameter.weight = part(parameter.weight);
  parameter.grad = part(grad);
  gathered_.push_back(weight);
}

TrainStep::Outgoing TrainStep::open_outgoing(const Config& config, const Communicator& comm,
                                             const Dataset& data, Device& device) {
  const std::int64_t micro = split_batch(config.train, comm.size()).micro;
  return {.batch = HostBatch(device, micro * config.model.context, micro * data.most_documents()),
          .state = device.allocate_host(sizeof(StepState)),
          .read = device.make_event()};
}

void TrainStep::start(std::int64_t step) {
  expect(started_ - finished_ < pending_.size(), "at most two steps are under way");
  Pending& pending = pending_[started_ % pending_.size()];
  double targets = static_cast<double>(loader_.count_targets());
  comm_.all_reduce_sum({&targets, 1});
  pending.result = {};
  pending.result.targets = static_cast<std::int64_t>(targets);
  pending.result.lr = learning_rate(config_.train, step);

  StepState state;
  state.seed = static_cast<std::uint64_t>(config_.run.seed);
  state.step = static_cast<std::uint64_t>(step);
  state.target_tokens = targets;
  state.learning_rate = pending.result.lr;
  state.bias_correction1 = 1 - std::pow(config_.train.beta1, static_cast<double>(step + 1));
  state.bias_correction2 = 1 - std::pow(config_.train.beta2, static_cast<double>(step + 1));

  zero_gradients();
  backward_of_global_batch(state);
  update();

  auto* sums = reinterpret_cast<double*>(pending.sums->data());
  ctx_.device.copy_to_host(ctx_.stream, &sums[0], arena_.tensor(run_.model->train_loss_sum()).data,
                           sizeof(double));
  ctx_.device.copy_to_host(ctx_.stream, &sums[1], arena_.tensor(run_.grad_square_sum).data,
                           sizeof(double));
  pending.done->record(ctx_.stream);
  loader_.advance();
  ++started_;
}

StepResult TrainStep::finish() {
  expect(started_ > finished_, "a step is finished after it was started");
  Pending& pending = pending_[finished_++ % pending_.size()];
  pending.done->wait();
  auto* sums = reinterpret_cast<double*>(pending.sums->data());
  comm_.all_reduce_sum({&sums[0], 1});
  StepResult result = pending.result;
  if (result.targets > 0) {
    const auto targets = static_cast<double>(result.targets);
    result.loss = sums[0] / targets;
    result.grad_norm = std::sqrt(sums[1]) / targets;
  }
  return result;
}

void TrainStep::zero_gradients() {
  for (const Tensor& range : zeroed_) ops::fill(ctx_, {range, 0});
  ops::fill(ctx_, {arena_.tensor(run_.model->train_loss_sum()), 0});
}

void TrainStep::backward_of_global_batch(StepState& state) {
  const Tensor device_state = arena_.tensor(run_.state);
  const std::int64_t micros = loader_.micro_batches();
  for (std::int64_t i = 0; i < micros; ++i) {
    Outgoing& out = outgoing_[next_outgoing_++ % outgoing_.size()];
    out.read->wait();
    const BatchInfo info = loader_.fill(i, out.batch.arrays());
    const Batch batch =
        out.batch.upload(ctx_, arena_, run_.model->train_inputs(), info, config_.model.context);
    state.first_sample = info.first_sample;
    std::memcpy(out.state->data(), &state, sizeof state);
    ctx_.device.copy_to_device(ctx_.stream, device_state.data, out.state->data(), sizeof state);
    out.read->record(ctx_.stream);
    run_.model->train_step(ctx_, arena_, batch, static_cast<const StepState*>(device_state.data),
                           [&](int layer) {
                             if (i == micros - 1) reducer_.ready(layer);
                           });
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
  if (run_.shards > 1) {  // of this rank's parts
    comm_.start_sum(square_sum);
    comm_.wait();
  }

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
  if (run_.shards > 1) {
    comm_.start_gather(gathered_);
    comm_.wait();
  }
  arena_.end();
}

}  // namespace tilefold
