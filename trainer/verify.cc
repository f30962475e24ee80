#include "trainer/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "trainer/host_batch.h"

namespace tilefold {
namespace {

template <class T>
LayerAgreement compare(const std::vector<T>& m0, const std::vector<T>& l0, const std::vector<T>& m1,
                       const std::vector<T>& l1, double tolerance) {
  LayerAgreement out;
  out.rows = static_cast<std::int64_t>(m0.size());
  double worst = -1;
  for (std::size_t i = 0; i < m0.size(); ++i) {
    if (std::memcmp(&m0[i], &m1[i], sizeof(T)) == 0 &&
        std::memcmp(&l0[i], &l1[i], sizeof(T)) == 0) {
      ++out.equal;
      continue;
    }
    const double saved = m0[i] + std::log(static_cast<double>(l0[i]));
    const double here = m1[i] + std::log(static_cast<double>(l1[i]));
    const double allowed = tolerance * (1 + std::abs(saved));
    double error = std::abs(here - saved);
    if (std::isnan(error)) error = INFINITY;
    if (!(error <= allowed)) out.agrees = false;
    if (error / allowed > worst) {
      worst = error / allowed;
      out.largest_error = error;
      out.largest_allowed = allowed;
    }
  }
  return out;
}

template <class T>
std::vector<T> to_vector(const Tensor& t, Context ctx) {
  std::vector<T> out(static_cast<std::size_t>(t.numel()));
  ctx.device.copy_to_host(ctx.stream, out.data(), t.data, t.bytes());
  ctx.stream.synchronize();
  return out;
}

template <class T>
std::vector<T> saved(const CheckpointReader& file, const std::string& name, const Shape& shape) {
  std::vector<T> out(static_cast<std::size_t>(shape.numel()));
  file.read(name, Tensor(out.data(), dtype_of<T>(), shape));
  return out;
}

template <class T>
LayerAgreement compare_layer(const CheckpointReader& file, int layer, const Tensor& m,
                             const Tensor& l, Context ctx, double tolerance) {
  const std::string at = str("row_constants/layer ", layer, "/");
  return compare(saved<T>(file, at + "m", m.shape), saved<T>(file, at + "l", l.shape),
                 to_vector<T>(m, ctx), to_vector<T>(l, ctx), tolerance);
}

// Documents of the saved batch; 0: not packed.
std::int64_t saved_documents(const CheckpointReader& file) {
  if (!file.has("row_constants/cu_seqlens")) return 0;
  return file.info("row_constants/cu_seqlens").shape.numel() - 1;
}

// The saved batch into the host's arrays, which have room for just its documents.
BatchInfo read_batch(const CheckpointReader& file, std::int64_t samples, std::int64_t context,
                     const BatchArrays& to) {
  const std::int64_t tokens = samples * context;
  auto ids = [&](const char* name, std::span<std::int32_t> into) {
    file.read(str("row_constants/", name), Tensor(into.data(), DType::i32, {tokens}));
  };
  ids("tokens", to.tokens);
  ids("targets", to.targets);
  ids("positions", to.positions);
  BatchInfo info;
  info.samples = samples;
  info.max_document = context;
  info.documents = std::max<std::int64_t>(std::ssize(to.cu_seqlens) - 1, 0);
  if (info.documents == 0) return info;
  file.read("row_constants/cu_seqlens",
            Tensor(to.cu_seqlens.data(), DType::i64, {info.documents + 1}));
  info.max_document = 0;
  for (std::int64_t x = 0; x < info.documents; ++x) {
    const auto i = static_cast<std::size_t>(x);
    info.max_document = std::max(info.max_document, to.cu_seqlens[i + 1] - to.cu_seqlens[i]);
  }
  return info;
}

}  // namespace

std::vector<LayerAgreement> verify_checkpoint(const CheckpointReader& file,
                                              const std::string& device_name, int threads) {
  require(file.has("row_constants/tokens"), file.path(),
          " holds no row constants (checkpoint.row_constants was false), so there is nothing to "
          "replay");
  Config config = config_of(file, {});
  config.checkpoint.row_constants = true;
  const std::unique_ptr<Device> device = open_device(device_name, 0, threads);
  const std::unique_ptr<Stream> stream = device->make_stream();
  const Context ctx{*device, *stream};
  const std::int64_t samples = file.number("row_constants_samples");
  const std::int64_t documents = saved_documents(file);
  const RunPlan run = plan_evaluation(config, device->info(), samples, documents);
  Arena arena(*device, run.plan, device->free_bytes());
  load_weights(file, run, arena, ctx);
  HostBatch host(*device, samples * config.model.context, documents);
  const BatchInfo info = read_batch(file, samples, config.model.context, host.arrays());
  const Batch batch = host.upload(ctx, arena, run.model->eval_inputs(), info, config.model.context);
  run.model->evaluate(ctx, arena, batch);

  std::vector<LayerAgreement> out;
  const double eps = unit_roundoff(config.model.dtype);
  for (const auto& [m_id, l_id] : run.model->eval_row_constants()) {
    const int layer = static_cast<int>(out.size());
    const Tensor m = arena.tensor(m_id), l = arena.tensor(l_id);
    const double tolerance = (layer + 1) * 64 * eps;
    out.push_back(m.dtype == DType::f64 ? compare_layer<double>(file, layer, m, l, ctx, tolerance)
                                        : compare_layer<float>(file, layer, m, l, ctx, tolerance));
  }
  return out;
}

}  // namespace tilefold
