// The parameters of a model in their order: token table, positions, each layer's attention and
// feed-forward half, the last norm, the head's table if it is not the tokens'.
#include "trainer/model/parameters.h"

#include <cmath>

#include "base/error.h"

namespace tilefold {
namespace {

class Builder {
 public:
  explicit Builder(const Sizes& sizes) : sizes_(sizes) {}

  int matrix(const std::string& layer, int index, const char* name, std::int64_t out,
             std::int64_t in, double scale = 1) {
    Parameter p;
    p.layer = layer;
    p.name = name;
    p.layer_index = index;
    p.shape = {out, in};
    p.init_deviation = scale * sizes_.init_deviation;
    p.decay = true;
    return add(p);
  }
  int vector(const std::string& layer, int index, const std::string& name, std::int64_t size,
             bool one) {
    Parameter p;
    p.layer = layer;
    p.name = name;
    p.layer_index = index;
    p.shape = {size};
    p.init_one = one;
    return add(p);
  }
  NormWeights norm(const std::string& layer, int index, const std::string& name) {
    NormWeights w;
    w.weight = vector(layer, index, name, sizes_.width, true);
    if (sizes_.bias) w.bias = vector(layer, index, name + "_bias", sizes_.width, false);
    return w;
  }
  LinearWeights linear(const std::string& layer, int index, const char* name, std::int64_t out,
                       std::int64_t in, double scale = 1) {
    LinearWeights w;
    w.weight = matrix(layer, index, name, out, in, scale);
    if (sizes_.bias) w.bias = vector(layer, index, std::string(name) + "_bias", out, false);
    return w;
  }
  std::vector<Parameter> take() { return std::move(parameters_); }

 private:
  int add(const Parameter& p) {
    parameters_.push_back(p);
    return static_cast<int>(parameters_.size()) - 1;
  }
  const Sizes& sizes_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::vector<Parameter> make_parameters(const Sizes& s, Weights& weights) {
  Builder add(s);
  // So that the residual stream's variance does not grow with the number of branches.
  const double into_residual = 1 / std::sqrt(2.0 * static_cast<double>(s.layers));
  weights.table = add.matrix("embedding", 0, "table", s.vocab, s.width);
  if (!s.llama()) weights.positions = add.matrix("embedding", 0, "positions", s.context, s.width);
  for (int i = 0; i < s.layers; ++i) {
    const std::string layer = layer_name(i);
    AttentionWeights a;
    a.norm = add.norm(layer, i + 1, "norm1");
    a.qkv = add.linear(layer, i + 1, "qkv", s.qkv_width(), s.width);
    a.out = add.linear(layer, i + 1, "out", s.width, s.width, into_residual);
    weights.attention.push_back(a);
    MlpWeights m;
    m.norm = add.norm(layer, i + 1, "norm2");
    m.up = add.linear(layer, i + 1, s.llama() ? "gate_up" : "up", s.up_width(), s.width);
    m.down = add.linear(layer, i + 1, "down", s.width, s.ffn, into_residual);
    weights.mlp.push_back(m);
  }
  const int head = static_cast<int>(s.layers) + 1;
  weights.norm = add.norm("head", head, "norm");
  weights.head = s.tied ? weights.table : add.matrix("head", head, "table", s.vocab, s.width);
  return add.take();
}

void Model::declare_weights(PlanBuilder& plan, bool training, int shards) {
  const Sizes& s = parts_->sizes;
  const bool copies = s.dtype != s.sum_dtype;  // 16-bit weights beside float32 masters
  for (Parameter& p : parts_->parameters) {
    p.weight = plan.persistent(p.layer, p.name, p.shape, s.dtype, Kind::weight);
    if (!copies) p.master = p.weight;
  }
  Weights& w = parts_->weights;
  if (s.llama())
    w.rope = plan.persistent("embedding", "rope", {s.context, s.d}, s.sum_dtype, Kind::weight);
  if (!training) return;
  w.loss_sum = plan.persistent("head", "loss_sum", {1}, DType::f64, Kind::workspace);
  for (Parameter& p : parts_->parameters)
    p.grad = plan.persistent(p.layer, "d" + p.name, p.shape, s.sum_dtype, Kind::gradient);
  constexpr std::int64_t kAligned = 8;  // elements: parts begin where vectors of 16 bytes may
  for (Parameter& p : parts_->parameters) {
    if (shards > 1 && p.shape.numel() % (shards * kAligned) != 0)
      throw UsageError(str("parallel.shard_optimizer: ", p.layer, "/", p.name, " has ",
                           p.shape.numel(), " elements, which do not divide over ", shards,
                           " ranks in multiples of ", kAligned,
                           "; allowed: other model sizes or ranks, or shard_optimizer false"));
    const Shape shape = shards > 1 ? Shape{p.shape.numel() / shards} : p.shape;
    const auto optimizer = [&](const char* what) {
      return plan.persistent(p.layer, p.name + what, shape, s.sum_dtype, Kind::optimizer);
    };
    if (copies) p.master = optimizer(".master");
    p.m = optimizer(".m");
    p.v = optimizer(".v");
  }
}

}  // namespace tilefold
