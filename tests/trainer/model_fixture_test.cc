// The model against an independent framework: losses and gradients of tiny models, made by
// tools/make_model_fixture.py.
#include <algorithm>
#include <cmath>

#include "io/hdf5.h"
#include "tests/catch.h"
#include "tests/trainer/model_harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

std::vector<double> doubles(const Hdf5Reader& file, const std::string& name) {
  const Shape shape = file.info(name).shape;
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  file.read(name, Tensor(values.data(), DType::f64, shape));
  return values;
}

void check_case(const Hdf5Reader& file, const std::string& group, DType dtype, double tolerance) {
  INFO(group << " in " << name_of(dtype));
  const auto attributes = file.attributes(group);
  const auto size = [&](const char* name) { return std::get<std::int64_t>(attributes.at(name)); };
  ModelConfig config;
  config.style = std::get<std::string>(attributes.at("style")) == "llama" ? ModelStyle::llama
                                                                          : ModelStyle::gpt2;
  config.layers = size("layers");
  config.width = size("width");
  config.heads = size("heads");
  config.kv_heads = size("kv_heads");
  config.ffn_width = size("ffn_width");
  config.vocab = size("vocab");
  config.context = size("context");
  config.tie_embeddings = size("tied") == 1;
  config.bias = size("bias") == 1;
  config.dtype = dtype;
  const Shape shape = file.info(group + "/tokens").shape;
  Options options;
  options.samples = shape[0];
  options.seq = shape[1];
  Harness h(config, options);
  file.read(group + "/tokens", Tensor(h.tokens.data(), DType::i32, shape));
  file.read(group + "/targets", Tensor(h.targets.data(), DType::i32, shape));
  for (const Parameter& p : h.model.parameters()) {
    const std::vector<double> from = doubles(file, group + "/weights/" + p.layer + "/" + p.name);
    const Tensor to = h.arena->tensor(p.master);
    REQUIRE(file.info(group + "/weights/" + p.layer + "/" + p.name).shape == p.shape);
    for (std::size_t i = 0; i < from.size(); ++i)
      set_value(to, static_cast<std::int64_t>(i), from[i]);
  }
  h.model.refresh(h.context(), *h.arena);

  const auto compare = [&](const std::string& name, const std::vector<double>& ours) {
    const std::vector<double> theirs = doubles(file, name);
    INFO(name);
    REQUIRE(ours.size() == theirs.size());
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(theirs[i]));
      error = std::max(error, std::abs(ours[i] - theirs[i]));
    }
    CHECK(largest > 1e-3);
    CHECK(error <= tolerance * largest);
  };
  const double sum = h.train();
  compare(group + "/losses", h.values(h.model.train_losses()));
  double expected = 0;
  for (double loss : doubles(file, group + "/losses")) expected += loss;
  CHECK(sum == Approx(expected).epsilon(tolerance));
  for (const Parameter& p : h.model.parameters())
    compare(group + "/gradients/" + p.layer + "/" + p.name, h.values(p.grad));
  h.evaluate();
  compare(group + "/losses", h.values(h.model.eval_losses()));
}

}  // namespace

TEST_CASE("losses and gradients are those of an independent framework") {
  const Hdf5Reader file(TILEFOLD_FIXTURES "/models.h5");
  for (const char* group : {"llama_tied", "llama_untied", "gpt2_tied", "gpt2_untied"}) {
    check_case(file, group, DType::f64, 1e-9);
    check_case(file, group, DType::f32, 2e-5);
    check_case(file, group, DType::bf16, 0.15);
  }
}
