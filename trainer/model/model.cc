#include "trainer/model/model.h"

#include <numeric>

#include "base/error.h"
#include "trainer/model/parameters.h"
#include "trainer/model/parts.h"

namespace tilefold {

Model::Model(const ModelConfig& config, const AttentionConfig& attention, const DeviceInfo& device)
    : parts_(std::make_unique<Parts>()) {
  parts_->sizes = resolve(config, attention);
  parts_->device = device;
  if (device.kind == DeviceKind::cuda && parts_->sizes.dtype == DType::f64)
    throw UsageError(str("model.dtype is f64; allowed on ", device.name, ": f32, bf16"));
  parts_->parameters = make_parameters(parts_->sizes, parts_->weights);
}

Model::~Model() = default;

const std::vector<Parameter>& Model::parameters() const { return parts_->parameters; }

std::int64_t Model::parameter_count() const {
  return std::accumulate(
      parts_->parameters.begin(), parts_->parameters.end(), std::int64_t{0},
      [](std::int64_t sum, const Parameter& p) { return sum + p.shape.numel(); });
}

Model::Inputs declare_inputs(PlanBuilder& plan, const PhaseShape& shape, bool targets, int last) {
  const std::int64_t tokens = shape.samples * shape.seq;
  const auto input = [&](const char* name, std::int64_t size, DType dtype) {
    return plan.scratch("input", name, {size}, dtype, Kind::input, 0, last);
  };
  Model::Inputs inputs;
  inputs.tokens = input("tokens", tokens, DType::i32);
  if (targets) inputs.targets = input("targets", tokens, DType::i32);
  inputs.positions = input("positions", tokens, DType::i32);
  if (shape.documents > 0) inputs.cu_seqlens = input("cu_seqlens", shape.documents + 1, DType::i64);
  return inputs;
}

void declare_layers(Declaration& d) {
  PassTensors& pass = d.pass;
  pass.attention.resize(static_cast<std::size_t>(d.sizes.layers));
  pass.mlp.resize(static_cast<std::size_t>(d.sizes.layers));
  pick_strategies(d);
  declare_embedding(d);
  for (int i = 0; i < d.sizes.layers; ++i) {
    declare_attention(d, i);
    declare_mlp(d, i);
  }
  declare_head(d);
}

void Model::declare_train(PlanBuilder& plan, const PhaseShape& shape) {
  Phase& phase = parts_->train;
  expect(phase.index < 0, "a phase is declared once");
  phase.index = plan.phase("train");
  phase.shape = shape;
  phase.pass.time = {.layers = static_cast<int>(parts_->sizes.layers)};
  phase.inputs = declare_inputs(plan, shape, true, phase.pass.time.embedding_backward());
  Declaration d{.plan = plan,
                .sizes = parts_->sizes,
                .device = parts_->device,
                .purpose = Purpose::train,
                .samples = shape.samples,
                .seq = shape.seq,
                .documents = shape.documents,
                .row_constants = false,
                .cache_length = 0,
                .pass = phase.pass};
  declare_layers(d);
}

void Model::declare_eval(PlanBuilder& plan, const PhaseShape& shape) {
  Phase& phase = parts_->eval;
  expect(phase.index < 0, "a phase is declared once");
  phase.index = plan.phase("eval");
  phase.shape = shape;
  phase.pass.time = {.layers = static_cast<int>(parts_->sizes.layers)};
  phase.inputs = declare_inputs(plan, shape, true, phase.pass.time.head());
  Declaration d{.plan = plan,
                .sizes = parts_->sizes,
                .device = parts_->device,
                .purpose = Purpose::evaluate,
                .samples = shape.samples,
                .seq = shape.seq,
                .documents = shape.documents,
                .row_constants = shape.row_constants,
                .cache_length = 0,
                .pass = phase.pass};
  declare_layers(d);
}

void check_batch(const char* name, const Phase& phase, const Batch& batch) {
  expect(phase.index >= 0, "a phase runs after its declaration");
  const PhaseShape& most = phase.shape;
  require(1 <= batch.samples && batch.samples <= most.samples && 1 <= batch.seq &&
              batch.seq <= most.seq,
          name, ": batch has ", batch.samples, " samples of ", batch.seq, " tokens; planned: 1 to ",
          most.samples, " of 1 to ", most.seq);
  const std::int64_t documents = batch.cu_seqlens ? batch.cu_seqlens.numel() - 1 : 0;
  require(documents <= most.documents, name, ": batch has ", documents,
          " packed documents; planned: 0 to ", most.documents);
}

void forward_to_head(const Run& run, Arena& arena) {
  const Timeline& time = run.pass.time;
  arena.step(time.embedding());
  embedding_forward(run);
  for (int i = 0; i < time.layers; ++i) {
    arena.step(time.attention(i));
    attention_forward(run, i);
    arena.step(time.mlp(i));
    mlp_forward(run, i);
  }
  arena.step(time.head());
}

void Model::train_step(Context ctx, Arena& arena, const Batch& batch, const StepState* state,
                       FunctionRef<void(int)> layer_done) const {
  const Phase& phase = parts_->train;
  check_batch("train", phase, batch);
  const PassTensors& pass = phase.pass;
  const Timeline& time = pass.time;
  const Run run{.ctx = ctx,
                .arena = arena,
                .sizes = parts_->sizes,
                .parameters = parts_->parameters,
                .weights = parts_->weights,
                .pass = pass,
                .batch = batch,
                .state = state};
  arena.begin(phase.index);
  forward_to_head(run, arena);
  head_loss(run);
  layer_done(time.layers + 1);

  const NormTensors* adds_branch = &pass.head.norm;  // the norm that adds the half-layer's branch
  for (int i = time.layers - 1; i >= 0; --i) {
    const std::size_t layer = static_cast<std::size_t>(i);
    arena.step(time.mlp_backward(i));
    mlp_backward(run, i, branch_gradient(run, *adds_branch));
    adds_branch = &pass.mlp[layer].norm;
    arena.step(time.attention_backward(i));
    attention_backward(run, i, branch_gradient(run, *adds_branch));
    adds_branch = &pass.attention[layer].norm;
    layer_done(i + 1);
  }
  arena.step(time.embedding_backward());
  embedding_backward(run);
  layer_done(0);  // with tied tables, the head's gradient too
  arena.end();
}

void Model::evaluate(Context ctx, Arena& arena, const Batch& batch) const {
  const Phase& phase = parts_->eval;
  check_batch("eval", phase, batch);
  const Run run{.ctx = ctx,
                .arena = arena,
                .sizes = parts_->sizes,
                .parameters = parts_->parameters,
                .weights = parts_->weights,
                .pass = phase.pass,
                .batch = batch};
  arena.begin(phase.index);
  forward_to_head(run, arena);
  head_loss(run);
  arena.end();
}

const Model::Inputs& Model::train_inputs() const { return parts_->train.inputs; }
const Model::Inputs& Model::eval_inputs() const { return parts_->eval.inputs; }
const Model::Inputs& Model::generate_inputs() const { return parts_->generate.inputs; }
TensorId Model::train_loss_sum() const { return parts_->weights.loss_sum; }
TensorId Model::train_losses() const { return parts_->train.pass.head.losses; }
TensorId Model::eval_losses() const { return parts_->eval.pass.head.losses; }
TensorId Model::eval_predictions() const { return parts_->eval.pass.head.predictions; }
TensorId Model::logits() const { return parts_->generate.pass.head.logits; }

std::vector<std::pair<TensorId, TensorId>> Model::eval_row_constants() const {
  std::vector<std::pair<TensorId, TensorId>> constants;
  if (!parts_->eval.shape.row_constants) return constants;
  for (const AttentionTensors& t : parts_->eval.pass.attention) constants.emplace_back(t.m, t.l);
  return constants;
}

}  // namespace tilefold
