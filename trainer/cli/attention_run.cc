// `tilefold attention run`: attention on arrays of a file.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "io/hdf5.h"
#include "ops/ops.h"
#include "trainer/cli/attention.h"
#include "trainer/cli/device_array.h"
#include "trainer/unused_gpu.h"

namespace tilefold {
namespace {

// What IN holds.
struct Input {
  Shape q_shape, k_shape, v_shape, do_shape;
  std::vector<float> q, k, v, d_o;
  std::vector<std::int64_t> cu_q, cu_k;  // empty: not packed
  AttentionOptions options;
};

std::vector<float> read_array(const Hdf5Reader& in, const std::string& name, Shape& shape) {
  require(in.has(name), in.path(), ": array '", name, "' is missing; allowed: q, k and v, float32");
  const Hdf5Info info = in.info(name);
  require(info.dtype == DType::f32, in.path(), ": array '", name, "' is ", name_of(info.dtype),
          "; allowed: f32");
  require(info.shape.rank == 4, in.path(), ": array '", name, "' has shape ", info.shape.text(),
          "; allowed: four dimensions, [batch, seq, heads, d]");
  shape = info.shape;
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  if (!values.empty()) in.read(name, Tensor(values.data(), DType::f32, shape));
  return values;
}

std::vector<std::int64_t> read_offsets(const Hdf5Reader& in, const std::string& name,
                                       std::int64_t rows) {
  std::vector<std::int64_t> x(static_cast<std::size_t>(in.integers(name).count));
  in.read_integers(name, 0, x);
  require(!x.empty() && x.front() == 0 && x.back() <= rows && std::is_sorted(x.begin(), x.end()),
          in.path(), ": array '", name,
          "' is no list of offsets; allowed: from 0, not decreasing, up to ", rows,
          ", the rows there are");
  return x;
}

double number(const std::string& where, const Hdf5Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  throw Error(where + " is text; allowed: a number");
}

std::int64_t whole_number(const std::string& where, const Hdf5Value& value) {
  // Far beyond every sequence, so that sums with positions stay in range.
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::min(*whole, kMost);
  const double x = number(where, value);
  require(x == std::floor(x) && std::abs(x) < 0x1p53, where, " is ", x,
          "; allowed: a whole number");
  return static_cast<std::int64_t>(x);
}

bool truth(const std::string& where, const Hdf5Value& value) {
  const double x = number(where, value);
  require(x == 0 || x == 1, where, " is ", x, "; allowed: 0, 1");
  return x == 1;
}

AttentionOptions read_options(const Hdf5Reader& in) {
  AttentionOptions o;
  for (const auto& [name, value] : in.attributes()) {
    const std::string where = str(in.path(), ": attribute '", name, "'");
    if (name == "causal")
      o.causal = truth(where, value);
    else if (name == "window_left")
      o.window_left = whole_number(where, value);
    else if (name == "window_right")
      o.window_right = whole_number(where, value);
    else if (name == "scale")
      o.scale = static_cast<float>(number(where, value));
    else if (name == "softcap")
      o.softcap = static_cast<float>(number(where, value));
    else if (name == "deterministic")
      o.deterministic = truth(where, value);
    else
      throw Error(where +
                  " is unknown; allowed: causal, window_left, window_right, scale, "
                  "softcap, deterministic");
  }
  return o;
}

Input read_input(const std::string& path) {
  const Hdf5Reader in(path);
  constexpr std::string_view known[] = {"q", "k", "v", "do", "cu_seqlens_q", "cu_seqlens_k"};
  for (const std::string& name : in.names()) {
    require(std::find(std::begin(known), std::end(known), name) != std::end(known), path,
            ": array '", name, "' is unknown; allowed: q, k, v, do, cu_seqlens_q, cu_seqlens_k");
    for (const auto& [attribute, value] : in.attributes(name))
      throw Error(str(path, ": attribute '", attribute, "' of array '", name,
                      "' is unknown; allowed: attributes of the root"));
  }
  Input x;
  x.q = read_array(in, "q", x.q_shape);
  x.k = read_array(in, "k", x.k_shape);
  x.v = read_array(in, "v", x.v_shape);
  if (in.has("do")) x.d_o = read_array(in, "do", x.do_shape);
  if (in.has("cu_seqlens_q") || in.has("cu_seqlens_k")) {
    for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"})
      require(in.has(name), path, ": array '", name,
              "' is missing; allowed: both offsets, or none");
    x.cu_q = read_offsets(in, "cu_seqlens_q", x.q_shape[1]);
    x.cu_k = read_offsets(in, "cu_seqlens_k", x.k_shape[1]);
  }
  x.options = read_options(in);
  return x;
}

std::int64_t longest(const std::vector<std::int64_t>& offsets) {
  std::int64_t most = 0;
  for (std::size_t x = 1; x < offsets.size(); ++x)
    most = std::max(most, offsets[x] - offsets[x - 1]);
  return most;
}

DeviceArray workspace_for(Context ctx, const AttentionProblem& problem) {
  return DeviceArray(ctx, DType::u8, {ops::attention_workspace(problem, ctx.device.info())});
}

std::span<std::byte> bytes_of(const DeviceArray& array) {
  return {static_cast<std::byte*>(array.view().data),
          static_cast<std::size_t>(array.view().bytes())};
}

// Results on the host, in the order of the writer's names.
using Results = std::map<std::string, std::pair<Shape, std::vector<float>>>;

// Forward, and backward where `do` is given. `ran` is set to what was picked for the forward.
Results compute(Context ctx, const Input& in, DType dtype, AttentionStrategy& ran) {
  const DeviceArray q(ctx, dtype, in.q_shape, in.q), k(ctx, dtype, in.k_shape, in.k);
  const DeviceArray v(ctx, dtype, in.v_shape, in.v), o(ctx, dtype, in.q_shape);
  const Shape rows{in.q_shape[0], in.q_shape[2], in.q_shape[1]};
  const DeviceArray m(ctx, DType::f32, rows), l(ctx, DType::f32, rows);
  DeviceArray cu_q, cu_k;

  AttentionForward forward;
  forward.q = q.view(), forward.k = k.view(), forward.v = v.view();
  forward.o = o.view(), forward.m = m.view(), forward.l = l.view();
  forward.options = in.options;
  if (!in.cu_q.empty()) {
    cu_q = DeviceArray(ctx, {static_cast<std::int64_t>(in.cu_q.size())}, in.cu_q);
    cu_k = DeviceArray(ctx, {static_cast<std::int64_t>(in.cu_k.size())}, in.cu_k);
    forward.documents = {cu_q.view(), cu_k.view(), longest(in.cu_q), longest(in.cu_k)};
  }
  const DeviceArray workspace = workspace_for(ctx, problem_of(forward));
  forward.workspace = bytes_of(workspace);
  ops::attention_forward(ctx, forward);
  ran = select_attention(problem_of(forward), ctx.device.info()).strategy;

  Results out;
  const auto keep = [&](const std::string& name, const DeviceArray& x) {
    out[name] = {x.view().shape, x.to_host(ctx)};
  };
  keep("o", o), keep("m", m), keep("l", l);
  std::vector<float> lse = out["m"].second;
  for (std::size_t i = 0; i < lse.size(); ++i) lse[i] += std::log(out["l"].second[i]);
  out["lse"] = {rows, std::move(lse)};
  if (in.do_shape.rank == 0) return out;

  const DeviceArray d_o(ctx, dtype, in.do_shape, in.d_o), dq(ctx, dtype, in.q_shape);
  const DeviceArray dk(ctx, dtype, in.k_shape), dv(ctx, dtype, in.k_shape);
  AttentionBackward backward;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.o = o.view(), backward.m = m.view(), backward.l = l.view(), backward.d_o = d_o.view();
  backward.dq = dq.view(), backward.dk = dk.view(), backward.dv = dv.view();
  backward.options = forward.options;
  backward.documents = forward.documents;
  const DeviceArray more = workspace_for(ctx, problem_of(backward));
  backward.workspace = bytes_of(more);
  ops::attention_backward(ctx, backward);
  keep("dq", dq), keep("dk", dk), keep("dv", dv);
  return out;
}

}  // namespace

void attention_run(const AttentionRunSettings& settings) {
  std::error_code absent;  // of a file that is not there yet
  if (std::filesystem::equivalent(settings.in, settings.out, absent))
    throw UsageError(str("OUT is ", settings.out, ", the same file as IN; allowed: another file"));
  Input in = read_input(settings.in);
  in.options.strategy = parse_attention_strategy(settings.strategy);

  const std::unique_ptr<Device> device = open_device(settings.device, 0, settings.threads);
  mention_unused_gpu(settings.device, device->info());
  const std::unique_ptr<Stream> stream = device->make_stream();
  AttentionStrategy ran{};
  const Results results = compute({*device, *stream}, in, parse_dtype(settings.dtype), ran);

  Hdf5Writer out;
  for (const auto& [name, result] : results)
    out.add(name, ConstTensor(result.second.data(), DType::f32, result.first));
  out.set("", "strategy", std::string(name_of(ran)));
  out.set("", "device", device->info().kind == DeviceKind::cpu ? "cpu" : "cuda");
  out.set("", "dtype", settings.dtype);
  out.save(settings.out);
}

}  // namespace tilefold
