// The transformer: explicit forward and backward per layer over planned memory. Knows nothing of
// ranks, files or schedules.
//
// A model first declares its tensors into a plan (weights, gradients and optimizer state once;
// then, for each phase that will run, everything between), then works in the arena of that plan.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "contract/optimizer.h"
#include "device/arena.h"
#include "device/device.h"
#include "memory/plan.h"
#include "trainer/config.h"

namespace tilefold {

// One weight, from declaration to update. Order is that of the declaration.
struct Parameter {
  std::string layer, name;  // "layer 0", "qkv"
  int layer_index = 0;      // 0 embedding, 1..layers blocks, layers + 1 head: as GradientReducer's
  Shape shape;
  double init_deviation = 0;  // normal(0, this); 0 with init_one: ones, else zeros
  bool init_one = false;
  bool decay = false;           // matrices only
  TensorId master = kNoTensor;  // f32 (f64 for f64)
  TensorId weight = kNoTensor;  // 16-bit copy, or master itself
  TensorId grad = kNoTensor, m = kNoTensor, v = kNoTensor;
};

// Which part of the optimizer state is here, where ranks share it out: of each array of n elements
// those from rank n / of on, n / of of them (base/part.h).
struct Shard {
  int rank = 0, of = 1;
};

// One micro-batch, in device memory. tokens = samples * seq.
struct Batch {
  std::int64_t samples = 0, seq = 0;
  ConstTensor tokens;      // [tokens] i32
  ConstTensor targets;     // [tokens] i32, -1: not scored
  ConstTensor positions;   // [tokens] i32: restart at each document
  ConstTensor cu_seqlens;  // [documents + 1] i64 over the flattened tokens; empty: not packed
  std::int64_t max_document = 0;  // longest document
};

struct PhaseShape {
  std::int64_t samples = 1;  // the largest micro-batch
  std::int64_t seq = 0;
  std::int64_t documents = 0;  // the most of a micro-batch, over all its samples; 0: not packed
  bool row_constants = false;  // eval: keep each layer's m and l to the end
};

class Model {
 public:
  Model(const ModelConfig& config, const AttentionConfig& attention, const DeviceInfo& device);
  ~Model();

  // Declarations, in this order; each phase at most once. `training` false leaves out gradients,
  // optimizer state and float32 masters that only an update needs; with shards, one part of as many
  // is declared of those, [n / shards]. Throws UsageError if a parameter does not divide.
  void declare_weights(PlanBuilder& plan, bool training, int shards = 1);
  void declare_train(PlanBuilder& plan, const PhaseShape& shape);
  void declare_eval(PlanBuilder& plan, const PhaseShape& shape);
  void declare_generate(PlanBuilder& plan, std::int64_t samples, std::int64_t cache_length);

  const std::vector<Parameter>& parameters() const;
  std::int64_t parameter_count() const;

  // Draws the weights on the host in float32 from the seed and fills the tables that are not
  // learned (rotary angles). Weights are the same for every device and number of ranks. Of 16-bit
  // copies whose masters are shared out, only the shard's part is written, here and by refresh().
  void initialize(Context ctx, Arena& arena, std::uint64_t seed, Shard shard = {}) const;
  // Rotary tables and 16-bit copies, after weights were loaded.
  void refresh(Context ctx, Arena& arena, Shard shard = {}) const;

  // One micro-batch: adds to the gradients and to train_loss_sum(). train_inputs() hold the batch.
  // layer_done(i) is called when backward has written the last gradient of layer i; layers count as
  // Parameter::layer_index, downwards.
  void train_step(Context ctx, Arena& arena, const Batch& batch, const StepState* state,
                  FunctionRef<void(int layer)> layer_done) const;
  // Forward only; eval_losses() and eval_predictions() hold the result.
  void evaluate(Context ctx, Arena& arena, const Batch& batch) const;
  // Forward over batch.seq new tokens a sample, whose cache places are start..; logits() of the
  // last of them. One token behind others takes the decode pass, more take the prompt's.
  void generate(Context ctx, Arena& arena, const Batch& batch, std::int64_t start) const;

  // The same for one token of one sample behind others, in generate_inputs().decode. Its place is
  // read on the device, so that what this queues can be recorded once and replayed for every token.
  // Logits are those of generate() up to rounding: attention may cut the keys elsewhere.
  void decode(Context ctx, Arena& arena) const;

  // Planned tensors that the outside fills or reads; sized for the declared shapes.
  struct Inputs {
    TensorId tokens = kNoTensor, targets = kNoTensor, positions = kNoTensor, cu_seqlens = kNoTensor;
    // [6] i32, generation: token, its place p (counted from 0), 0, 1, 0, p + 1. The last four are
    // the offsets of one document, of one query and p + 1 keys.
    TensorId decode = kNoTensor;
  };
  const Inputs& train_inputs() const;
  const Inputs& eval_inputs() const;
  const Inputs& generate_inputs() const;
  TensorId train_loss_sum() const;    // [1] f64
  TensorId train_losses() const;      // [tokens] f32 (f64 for f64)
  TensorId eval_losses() const;       // [tokens] f32 (f64 for f64)
  TensorId eval_predictions() const;  // [tokens] i32
  TensorId logits() const;            // [samples, vocab] f32 (f64 for f64)
  // Row constants of each layer's attention after evaluate() when the eval phase keeps them.
  std::vector<std::pair<TensorId, TensorId>> eval_row_constants() const;  // m, l a layer

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tilefold
