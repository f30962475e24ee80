// Small models trained on the CPU and on the GPU from the same seed on the same data.
#include "comm/communicator.h"
#include "tests/catch.h"
#include "tests/kernels/gpu.h"
#include "trainer/checkpoint.h"
#include "trainer/session.h"
#include "trainer/train_step.h"

using namespace tilefold;

namespace {

Config small_model(ModelStyle style, DType dtype) {
  Config c;
  c.run.seed = 3;
  c.model.style = style;
  c.model.layers = 2;
  c.model.width = 128;
  c.model.heads = 2;
  c.model.kv_heads = style == ModelStyle::llama ? 1 : 2;
  c.model.ffn_width = 192;
  c.model.context = 96;
  c.model.dtype = dtype;
  c.model.init_deviation = 0.06;
  c.model.bias = style == ModelStyle::gpt2;
  c.model.dropout = style == ModelStyle::gpt2 ? 0.1 : 0;
  c.data.kind = DataKind::recall;
  c.data.symbols = 16;
  c.data.pairs = 8;
  c.data.filler = 64;
  c.train.global_batch = 16;
  c.train.micro_batch = 8;
  c.train.lr = 2e-3;
  c.train.warmup_steps = 20;
  c.train.steps = 200;
  return c;
}

// Losses of the first `steps` steps, queued one ahead as the training loop does.
std::vector<double> losses(Config config, const char* device, std::int64_t steps) {
  config.run.device = device;
  const std::unique_ptr<Communicator> comm = open_communicator(nullptr, nullptr);
  const std::unique_ptr<Session> session = open_training(config, *comm, 0);
  start_anew(*session);
  TrainStep train(session->config, *comm, *session->data, session->run, *session->arena,
                  session->context(), 0);
  std::vector<double> out;
  train.start(0);
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) train.start(step + 1);
    out.push_back(train.finish().loss);
  }
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double relative = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(relative <= most)) most = relative;
  }
  return most;
}

}  // namespace

TEST_CASE("float32 training: losses of CPU and GPU agree over 50 steps") {
  if (!test::gpu_or_skip()) return;
  for (const ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2}) {
    const Config c = small_model(style, DType::f32);
    const auto cpu = losses(c, "cpu", 50), gpu = losses(c, "cuda", 50);
    INFO("losses " << cpu.front() << " to " << cpu.back() << ", GPU's last " << gpu.back());
    CHECK(largest_difference(gpu, cpu) <= 1e-4);
    CHECK(gpu == losses(c, "cuda", 50));
  }
}

TEST_CASE("bfloat16 training: losses of CPU and GPU agree over 200 steps") {
  if (!test::gpu_or_skip()) return;
  for (const ModelStyle style : {ModelStyle::llama, ModelStyle::gpt2})
    for (const DType residual : {DType::f32, DType::bf16}) {
      Config c = small_model(style, DType::bf16);
      c.model.residual_dtype = residual;
      const auto cpu = losses(c, "cpu", 200), gpu = losses(c, "cuda", 200);
      INFO("losses " << cpu.front() << " to " << cpu.back() << ", GPU's last " << gpu.back());
      CHECK(largest_difference(gpu, cpu) <= 0.02);
      CHECK(gpu == losses(c, "cuda", 200));
    }
}
