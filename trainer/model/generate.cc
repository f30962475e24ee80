// Generation with a key/value cache. One phase of two passes that share their bytes: many tokens
// (a prompt, or a piece of one), and one token after others. The caches outlive both.
#include <tuple>

#include "base/error.h"
#include "trainer/model/parts.h"

namespace tilefold {

void Model::declare_generate(PlanBuilder& plan, std::int64_t samples, std::int64_t cache_length) {
  const Sizes& s = parts_->sizes;
  require(1 <= cache_length && cache_length <= s.context, "generate: cache length is ",
          cache_length, "; allowed: 1 to model.context ", s.context);
  Phase& phase = parts_->generate;
  expect(phase.index < 0, "a phase is declared once");
  phase.index = plan.phase("generate");
  phase.shape = {.samples = samples, .seq = cache_length};
  const int layers = static_cast<int>(s.layers);
  phase.pass.time = {.layers = layers};
  parts_->decode.time = {.layers = layers, .first = phase.pass.time.head() + 1};
  const int end = parts_->decode.time.head();
  phase.inputs = declare_inputs(plan, phase.shape, false, end);
  if (samples == 1)
    phase.inputs.decode = plan.scratch("input", "decode", {6}, DType::i32, Kind::input, 0, end);

  std::vector<std::pair<TensorId, TensorId>> caches;
  for (int i = 0; i < layers; ++i) {
    const auto cache = [&](const char* name) {
      return plan.scratch(layer_name(i), name, {samples, cache_length, s.kv_heads, s.d}, s.dtype,
                          Kind::cache, 0, end);
    };
    const TensorId k = cache("k_cache");
    caches.emplace_back(k, cache("v_cache"));
  }
  const TensorId logits = plan.scratch("head", "logits", {samples, s.vocab}, s.sum_dtype,
                                       Kind::workspace, phase.pass.time.head(), end);
  for (PassTensors* pass : {&phase.pass, &parts_->decode}) {
    Declaration d{.plan = plan,
                  .sizes = s,
                  .device = parts_->device,
                  .purpose = Purpose::generate,
                  .samples = samples,
                  .seq = pass == &phase.pass ? cache_length : 1,
                  .documents = 0,
                  .row_constants = false,
                  .cache_length = cache_length,
                  .pass = *pass};
    declare_layers(d);
    pass->head.logits = logits;
    for (std::size_t i = 0; i < caches.size(); ++i)
      std::tie(pass->attention[i].k_cache, pass->attention[i].v_cache) = caches[i];
  }
}

void Model::generate(Context ctx, Arena& arena, const Batch& batch, std::int64_t start) const {
  const Phase& phase = parts_->generate;
  check_batch("generate", phase, batch);
  require(0 <= start && start + batch.seq <= phase.shape.seq, "generate: ", batch.seq,
          " tokens at place ", start, " pass the cache's ", phase.shape.seq);
  const bool decode = start > 0 && batch.seq == 1;
  const Run run{.ctx = ctx,
                .arena = arena,
                .sizes = parts_->sizes,
                .parameters = parts_->parameters,
                .weights = parts_->weights,
                .pass = decode ? parts_->decode : phase.pass,
                .batch = batch,
                .start = start};
  arena.begin(phase.index);
  forward_to_head(run, arena);
  head_logits(run);
  arena.end();
}

void Model::decode(Context ctx, Arena& arena) const {
  const Phase& phase = parts_->generate;
  expect(phase.index >= 0, "a phase runs after its declaration");
  const ConstTensor step = arena.tensor(phase.inputs.decode);
  Batch batch;
  batch.samples = batch.seq = batch.max_document = 1;
  batch.tokens = step.sliced(0, 0, 1);
  batch.positions = step.sliced(0, 1, 1);
  const Run run{.ctx = ctx,
                .arena = arena,
                .sizes = parts_->sizes,
                .parameters = parts_->parameters,
                .weights = parts_->weights,
                .pass = parts_->decode,
                .batch = batch,
                .offsets = step.sliced(0, 2, 4)};
  arena.begin(phase.index);
  forward_to_head(run, arena);
  head_logits(run);
  arena.end();
}

}  // namespace tilefold
