// What the parts of the model share: where their parameters and planned tensors are (as data), what
// a declaration and a run carry along. One part a file; each has
//   declare_X           its tensors of a phase, births and last reads
//   X_forward, X_backward
//
//   residual stream   x_0 = embedding       x_{j+1} = x_j + dropout(branch_j)
//   branch 2i         W_out attention(norm(x_2i) W_qkv)
//   branch 2i + 1     W_down act(norm(x_{2i+1}) W_up)
//   head              loss(norm(x_2L) W_vocab)
//
// The addition is fused with the norm that follows, so each half-layer starts by adding the branch
// of the one before. When training, each sum x_j is kept; otherwise one tensor is added to in
// place.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contract/token.h"
#include "trainer/model/model.h"
#include "trainer/model/sizes.h"

namespace tilefold {

// --- Parameters, as indices into Model::parameters(); -1: the model has none.

struct NormWeights {
  int weight = -1, bias = -1;  // [width]
};
struct LinearWeights {
  int weight = -1, bias = -1;  // [out, in], [out]
};
struct AttentionWeights {
  NormWeights norm;
  LinearWeights qkv;  // [(heads + 2 kv_heads) d, width]: query heads, key heads, value heads
  LinearWeights out;  // [width, heads d]
};
struct MlpWeights {
  NormWeights norm;
  LinearWeights up;    // [2 ffn, width]: gate, then up; GPT-2: [ffn, width]
  LinearWeights down;  // [width, ffn]
};
struct Weights {
  int table = -1;      // [vocab, width]
  int positions = -1;  // [context, width], GPT-2 only
  std::vector<AttentionWeights> attention;
  std::vector<MlpWeights> mlp;
  NormWeights norm;  // of the head
  int head = -1;     // [vocab, width]; table where tied
  // Not learned; persistent.
  TensorId rope = kNoTensor;      // [context, d], Llama only
  TensorId loss_sum = kNoTensor;  // [1] f64
};

// --- Planned tensors of a phase.

struct NormTensors {
  TensorId residual = kNoTensor;  // [tokens, width] before the addition
  TensorId branch = kNoTensor;    // [tokens, width] what is added; the first norm has none
  TensorId sum = kNoTensor;       // [tokens, width] what is normalized
  TensorId y = kNoTensor;         // [tokens, width]
  TensorId mean = kNoTensor;      // [tokens], layer norm only
  TensorId rstd = kNoTensor;      // [tokens]
  std::uint32_t site = 0;         // the branch's dropout
  TensorId dy = kNoTensor;        // [tokens, width]
  TensorId dbranch = kNoTensor;   // [tokens, width]; kNoTensor: the residual's gradient serves
};
struct AttentionTensors {
  NormTensors norm;
  TensorId qkv = kNoTensor;            // [tokens, (heads + 2 kv_heads) d]
  TensorId o = kNoTensor;              // [tokens, heads d]
  TensorId m = kNoTensor;              // [samples, heads, seq]
  TensorId l = kNoTensor;              // [samples, heads, seq]
  TensorId probabilities = kNoTensor;  // [samples, heads, seq, seq], naive only
  TensorId branch = kNoTensor;         // [tokens, width]
  TensorId workspace = kNoTensor;
  TensorId k_cache = kNoTensor, v_cache = kNoTensor;  // [samples, cache length, kv_heads, d]
  TensorId d_o = kNoTensor;                           // [tokens, heads d]
  TensorId dqkv = kNoTensor;                          // [tokens, (heads + 2 kv_heads) d]
  TensorId workspace_backward = kNoTensor;
};
struct MlpTensors {
  NormTensors norm;
  TensorId up = kNoTensor;      // [tokens, 2 ffn]; GPT-2: [tokens, ffn], before GELU
  TensorId act = kNoTensor;     // [tokens, ffn]
  TensorId branch = kNoTensor;  // [tokens, width]
  TensorId workspace = kNoTensor;
  TensorId dact = kNoTensor;  // [tokens, ffn]; GPT-2: the gradient before GELU
  TensorId dup = kNoTensor;   // [tokens, 2 ffn], Llama only
  TensorId workspace_backward = kNoTensor;
};
struct HeadTensors {
  NormTensors norm;
  TensorId losses = kNoTensor;       // [tokens]
  TensorId predictions = kNoTensor;  // [tokens], evaluation
  TensorId logits = kNoTensor;       // [samples, vocab], generation
  TensorId workspace = kNoTensor;
};
// One pass through the model.
struct PassTensors {
  Timeline time;
  TensorId x = kNoTensor;          // [tokens, width] the embedding's output
  TensorId dresidual = kNoTensor;  // [tokens, width], training
  std::vector<AttentionTensors> attention;
  std::vector<MlpTensors> mlp;
  HeadTensors head;
  // Picked for the largest batch and kept for smaller ones, so that their workspace is planned.
  AttentionStrategy forward = AttentionStrategy::automatic, backward = AttentionStrategy::automatic;
};

// --- Declaring.

enum class Purpose : std::uint8_t { train, evaluate, generate };

struct Declaration {
  PlanBuilder& plan;
  const Sizes& sizes;
  const DeviceInfo& device;
  Purpose purpose;
  std::int64_t samples, seq;  // the largest batch
  std::int64_t documents;     // the most of a batch; 0: not packed
  bool row_constants;         // of an evaluation, kept
  std::int64_t cache_length;  // generation
  PassTensors& pass;
  // Where the residual stream is: the sum so far and the branch not yet added to it.
  TensorId sum = kNoTensor, branch = kNoTensor;
  std::uint32_t branch_site = 0;

  bool training() const { return purpose == Purpose::train; }
  std::int64_t tokens() const { return samples * seq; }
  // [tokens, width], alive in steps [born, last].
  TensorId rows(const std::string& layer, const char* name, std::int64_t width, DType dtype,
                Kind kind, int born, int last);
  // [tokens, width] for backward: to `last` when training, else of this step.
  TensorId activation(const std::string& layer, const char* name, std::int64_t width, int now,
                      int last);
  // Of step `now`; none if no bytes are needed.
  TensorId workspace(const std::string& layer, std::int64_t bytes, int now);
  // The most that any batch of 1 to `samples` sequences needs.
  std::int64_t most(FunctionRef<std::int64_t(std::int64_t samples)> bytes) const;
  std::int64_t linear_bytes(std::int64_t in, std::int64_t out) const;
  std::int64_t norm_backward_bytes() const;
  AttentionProblem attention_problem(std::int64_t samples, std::int64_t seq, bool backward) const;
};

std::string layer_name(std::int64_t layer);  // "layer 3"

// The norm that starts a half-layer at step `now` and is last read at step `backward`.
NormTensors declare_norm(Declaration& d, const std::string& layer, int now, int backward,
                         int branch_backward);
void declare_embedding(Declaration& d);
void declare_attention(Declaration& d, int layer);
void declare_mlp(Declaration& d, int layer);
void declare_head(Declaration& d);
// Picks the strategies of the pass.
void pick_strategies(Declaration& d);

// --- Running.

// One micro-batch on its way through a pass.
struct Run {
  Context ctx;
  const Arena& arena;
  const Sizes& sizes;
  const std::vector<Parameter>& parameters;
  const Weights& weights;
  const PassTensors& pass;
  const Batch& batch;
  const StepState* state = nullptr;  // null: no dropout
  std::int64_t start = 0;            // place of the first token in the cache
  ConstTensor offsets = {};  // [4] i32 where the device knows that place: see Inputs::decode

  std::int64_t tokens() const { return batch.samples * batch.seq; }
  // Decoding in the ops of contract/token.h, which add to the residual stream where they end: no
  // branch is left to the norm that follows.
  bool by_token() const { return offsets && sizes.llama(); }
  ConstTensor weight(int parameter) const;
  Tensor grad(int parameter) const;
  // The first elements of a planned tensor, in the shape of this batch.
  Tensor view(TensorId id, const Shape& shape) const;
  Tensor rows(TensorId id) const;  // [tokens, width] of a planned [most tokens, width]
  Tensor row_values(TensorId id) const { return id == kNoTensor ? Tensor{} : view(id, {tokens()}); }
  std::span<std::byte> workspace(TensorId id) const;
  Dropout dropout(std::uint32_t site) const;
};

void linear_forward(const Run& run, const LinearWeights& w, ConstTensor x, Tensor y,
                    TensorId workspace);
// The same after the norm t of the residual stream, or added to it; by token. What `normed` lacks
// besides, the caller has set.
void normed_linear(const Run& run, const NormWeights& norm, const NormTensors& t,
                   const LinearWeights& w, NormedLinear normed);
void linear_add(const Run& run, const LinearWeights& w, ConstTensor x, const NormTensors& t);
void linear_backward(const Run& run, const LinearWeights& w, ConstTensor dy, ConstTensor x,
                     Tensor dx, TensorId workspace, ConstTensor x_pre = {});
void norm_forward(const Run& run, const NormWeights& w, const NormTensors& t);
// dy is t.dy; adds to the residual's gradient, and gives the branch's.
void norm_backward(const Run& run, const NormWeights& w, const NormTensors& t, TensorId workspace);
// The gradient of the branch that t adds.
ConstTensor branch_gradient(const Run& run, const NormTensors& t);

void embedding_forward(const Run& run);
void embedding_backward(const Run& run);
void attention_forward(const Run& run, int layer);
// `dbranch`: the gradient of this half-layer's branch, given by the norm that adds it.
void attention_backward(const Run& run, int layer, ConstTensor dbranch);
void mlp_forward(const Run& run, int layer);
void mlp_backward(const Run& run, int layer, ConstTensor dbranch);
// Losses, and when training the gradients of head and last norm.
void head_loss(const Run& run);
// Logits of each sample's last token.
void head_logits(const Run& run);
// Embedding and all half-layers, telling the arena of each step.
void forward_to_head(const Run& run, Arena& arena);

// --- The model.

// A phase of the plan: the largest batch, and where it is.
struct Phase {
  int index = -1;  // in the plan; -1: not declared
  PhaseShape shape;
  Model::Inputs inputs;
  PassTensors pass;  // of generation: many tokens, start anywhere
};

struct Model::Parts {
  Sizes sizes;
  DeviceInfo device;
  std::vector<Parameter> parameters;
  Weights weights;
  Phase train, eval, generate;
  PassTensors decode;  // of generation: one token after others
};

// Throws Error naming the phase if the batch is larger than declared. REQUIRES: it was declared.
void check_batch(const char* name, const Phase& phase, const Batch& batch);
// Input tensors of a phase that starts at step 0, alive to `last`.
Model::Inputs declare_inputs(PlanBuilder& plan, const PhaseShape& shape, bool targets, int last);
void declare_layers(Declaration& d);

}  // namespace tilefold
