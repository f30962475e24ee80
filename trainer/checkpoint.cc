#include "trainer/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/float_types.h"
#include "base/part.h"
#include "ops/ops.h"
#include "trainer/host_batch.h"
#include "trainer/report/memory_report.h"

namespace tilefold {
namespace {

// Device arrays as host arrays: the same memory on the CPU, copies elsewhere, kept until this goes.
class HostArrays {
 public:
  explicit HostArrays(Context ctx) : ctx_(ctx) {}

  ConstTensor host(const Tensor& t) {
    if (ctx_.device.info().kind == DeviceKind::cpu) return t;
    copies_.push_back(ctx_.device.allocate_host(t.bytes()));
    ctx_.device.copy_to_host(ctx_.stream, copies_.back()->data(), t.data, t.bytes());
    ctx_.stream.synchronize();
    return ConstTensor(copies_.back()->data(), t.dtype, t.shape);
  }

 private:
  Context ctx_;
  std::vector<std::unique_ptr<Memory>> copies_;
};

// Reads an array of the file, of the given shape, into device memory: all of it, or the shard's
// part.
void read_into(const CheckpointReader& file, const std::string& name, const Shape& shape,
               const Tensor& to, Shard shard, Context ctx) {
  const bool whole = to.numel() == shape.numel();
  if (whole && ctx.device.info().kind == DeviceKind::cpu) return file.read(name, to);
  const std::unique_ptr<Memory> host = ctx.device.allocate_host(shape.numel() * size_of(to.dtype));
  const Tensor all(host->data(), to.dtype, shape);
  file.read(name, all);
  const Tensor from = whole ? all : part_of(all, shard.rank, shard.of);
  ctx.device.copy_to_device(ctx.stream, to.data, from.data, to.bytes());
  ctx.stream.synchronize();
}

// Reads float32 weights where a model that is not trained keeps them in 16 bits alone: rounded as
// Model::refresh rounds masters.
void read_rounded(const CheckpointReader& file, const std::string& name, const Tensor& to,
                  Context ctx) {
  const std::int64_t count = to.numel();
  const std::unique_ptr<Memory> wide = ctx.device.allocate_host(count * size_of(DType::f32));
  const std::unique_ptr<Memory> narrow = ctx.device.allocate_host(to.bytes());
  file.read(name, Tensor(wide->data(), DType::f32, to.shape));
  const auto* from = reinterpret_cast<const float*>(wide->data());
  for_float_dtype(to.dtype, [&]<class T>(Type<T>) {
    std::transform(from, from + count, reinterpret_cast<T*>(narrow->data()),
                   [](float x) { return static_cast<T>(x); });
  });
  ctx.device.copy_to_device(ctx.stream, to.data, narrow->data(), to.bytes());
  ctx.stream.synchronize();
}

// The arrays that a run goes on from, in the order of a file.
struct StateArray {
  const char* group;
  TensorId Parameter::*id;
};
constexpr StateArray kState[] = {
    {"weights", &Parameter::master}, {"adam_m", &Parameter::m}, {"adam_v", &Parameter::v}};

std::string array_name(const char* group, const Parameter& p) {
  return str(group, "/", p.layer, "/", p.name);
}

// One forward of the saved weights over the first micro-batch of the step that was just done, and
// the constants of its rows.
void add_row_constants(CheckpointWriter& file, HostArrays& arrays, Session& s,
                       const ResumePoint& at, std::int64_t micro, HostBatch& host) {
  const Config& c = s.config;
  const std::int64_t first = at.consumed - c.train.global_batch;
  const BatchInfo info = fill_batch(*s.data, Split::train, first, micro, 0, host.arrays());
  const Context ctx = s.context();
  const Batch batch = host.upload(ctx, *s.arena, s.run.model->eval_inputs(), info, c.model.context);
  s.run.model->evaluate(ctx, *s.arena, batch);
  ctx.stream.synchronize();

  file.set("row_constants_first_sample", first);
  file.set("row_constants_samples", micro);
  const std::int64_t tokens = micro * c.model.context;
  auto ids = [&](const char* name, std::span<const std::int32_t> values) {
    file.add(str("row_constants/", name), ConstTensor(values.data(), DType::i32, {tokens}));
  };
  ids("tokens", host.arrays().tokens);
  ids("targets", host.arrays().targets);
  ids("positions", host.arrays().positions);
  if (info.documents > 0)
    file.add("row_constants/cu_seqlens",
             ConstTensor(host.arrays().cu_seqlens.data(), DType::i64, {info.documents + 1}));
  int layer = 0;
  for (const auto& [m, l] : s.run.model->eval_row_constants()) {
    file.add(str("row_constants/layer ", layer, "/m"), arrays.host(s.arena->tensor(m)));
    file.add(str("row_constants/layer ", layer, "/l"), arrays.host(s.arena->tensor(l)));
    ++layer;
  }
}

// "section.key: value" lines of a resolved config.
std::vector<std::string> settings(const Config& config) {
  std::vector<std::string> out;
  std::istringstream lines(to_yaml(config));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ')
      section = line.substr(0, line.find(':'));
    else
      out.push_back(section + "." + line.substr(line.find_first_not_of(' ')));
  }
  return out;
}

// What decides bits of a continued run; the rest may change from run to run.
bool fixed_for_a_run(const std::string& setting) {
  for (const char* prefix : {"model.", "attention.", "data.", "run.seed", "train.global_batch"})
    if (setting.starts_with(prefix) && !setting.starts_with("data.path") &&
        !setting.starts_with("data.val_path"))
      return true;
  return false;
}

void compare_settings(const Config& before, const Config& now, const std::string& path) {
  const std::vector<std::string> old = settings(before), current = settings(now);
  expect(old.size() == current.size(), "two configs list the same keys");
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (old[i] == current[i]) continue;
    if (fixed_for_a_run(current[i]))
      throw UsageError(str("--resume: ", path, " was made with '", old[i], "', the config says '",
                           current[i],
                           "'; a continued run keeps it: set it back, or start anew with "
                           "another run.name or --overwrite"));
    std::fprintf(stderr, "note: the checkpoint had %s; going on with %s\n", old[i].c_str(),
                 current[i].c_str());
  }
}

// FNV-1a over 8-byte words: finds any difference between ranks that the sum of bits could hide.
std::uint64_t fingerprint(std::uint64_t hash, ConstTensor t) {
  const auto* bytes = static_cast<const unsigned char*>(t.data);
  const std::int64_t n = t.bytes();
  for (std::int64_t i = 0; i < n; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, static_cast<std::size_t>(std::min<std::int64_t>(8, n - i)));
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

std::string newest_checkpoint(const std::string& directory) {
  const std::vector<std::string> paths = list_checkpoints(directory);
  for (const std::string& path : paths) {
    try {
      verify_checkpoint_file(path);
      return path;
    } catch (const Error& error) {
      std::fprintf(stderr, "note: passing over a checkpoint: %s\n", error.what());
    }
  }
  require(
      paths.empty(), "no checkpoint in ", directory,
      " can be used, each for the reason said above; mend them, or start anew with --overwrite");
  return "";
}

std::string find_checkpoint(const std::string& file_or_run) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(file_or_run, ignored)) return file_or_run;
  for (const std::string& directory : {file_or_run + "/checkpoints", file_or_run}) {
    if (!fs::is_directory(directory, ignored)) continue;
    const std::string newest = newest_checkpoint(directory);
    if (!newest.empty()) return newest;
  }
  throw Error(str(file_or_run,
                  " holds no checkpoint that can be read; expected: a checkpoint file, or "
                  "the directory of a run with checkpoints/step-*.h5"));
}

WholeState gather_state(Communicator& comm, Session& s) {
  WholeState state;
  if (s.shard.of == 1) return state;
  HostArrays arrays(s.context());
  for (const Parameter& p : s.run.model->parameters())
    for (const StateArray& array : kState) {
      const Tensor here = s.arena->tensor(p.*array.id);
      if (here.numel() == p.shape.numel()) continue;
      const ConstTensor part = arrays.host(here);
      std::vector<std::byte> whole(static_cast<std::size_t>(part.bytes() * s.shard.of));
      comm.all_gather(
          {static_cast<const std::byte*>(part.data), static_cast<std::size_t>(part.bytes())},
          whole);
      if (comm.rank() == 0) state.emplace(array_name(array.group, p), std::move(whole));
    }
  return state;
}

void gather_weights(Communicator& comm, Session& s) {
  if (s.shard.of == 1) return;
  std::vector<Tensor> weights;
  for (const Parameter& p : s.run.model->parameters()) weights.push_back(s.arena->tensor(p.weight));
  comm.start_gather(weights);
  comm.wait();
  s.stream->synchronize();
}

void save_checkpoint(const std::string& path, Session& s, const ResumePoint& at, std::int64_t micro,
                     const WholeState& gathered) {
  CheckpointWriter file;
  file.set("config", to_yaml(s.config));
  file.set("vocabulary", s.data->vocabulary().save());
  file.set("plan", plan_json(s.run.plan));
  file.set("step", at.step);
  file.set("consumed", at.consumed);
  file.set("seed", s.config.run.seed);
  HostArrays arrays(s.context());
  HostBatch host(*s.device, micro * s.config.model.context, micro * s.data->most_documents());
  for (const Parameter& p : s.run.model->parameters())
    for (const StateArray& array : kState) {
      const std::string name = array_name(array.group, p);
      const Tensor here = s.arena->tensor(p.*array.id);
      const auto whole = gathered.find(name);
      file.add(name, whole == gathered.end()
                         ? arrays.host(here)
                         : ConstTensor(whole->second.data(), here.dtype, p.shape));
    }
  if (s.config.checkpoint.row_constants) add_row_constants(file, arrays, s, at, micro, host);
  file.save(path);
}

void start_anew(Session& s) {
  const Context ctx = s.context();
  s.run.model->initialize(ctx, *s.arena, static_cast<std::uint64_t>(s.config.run.seed), s.shard);
  for (const Parameter& p : s.run.model->parameters())
    for (const TensorId moment : {p.m, p.v}) ops::fill(ctx, {s.arena->tensor(moment), 0});
}

ResumePoint resume_from(const std::string& path, Session& s) {
  const CheckpointReader file(path);
  compare_settings(config_of(file, {}), s.config, path);
  if (file.text("vocabulary") != s.data->vocabulary().save())
    throw UsageError(str("--resume: ", path, " was trained with other token ids than ",
                         s.config.data.path,
                         " gives (another set of characters); a continued run keeps them: give the "
                         "data that it began with, or start anew"));
  const Context ctx = s.context();
  for (const Parameter& p : s.run.model->parameters()) {
    read_into(file, array_name("adam_m", p), p.shape, s.arena->tensor(p.m), s.shard, ctx);
    read_into(file, array_name("adam_v", p), p.shape, s.arena->tensor(p.v), s.shard, ctx);
  }
  load_weights(file, s.run, *s.arena, ctx, s.shard);
  return {.step = file.number("step"), .consumed = file.number("consumed")};
}

void load_weights(const CheckpointReader& file, const RunPlan& run, Arena& arena, Context ctx,
                  Shard shard) {
  for (const Parameter& p : run.model->parameters()) {
    const std::string name = array_name("weights", p);
    if (p.master != kNoTensor)
      read_into(file, name, p.shape, arena.tensor(p.master), shard, ctx);
    else
      read_rounded(file, name, arena.tensor(p.weight), ctx);
  }
  run.model->refresh(ctx, arena, shard);
}

Config config_of(const CheckpointReader& file, const std::vector<std::string>& overrides) {
  return parse_config(file.text("config"), file.path(), overrides);
}

void require_equal_weights(Communicator& comm, Session& s) {
  if (comm.size() == 1) return;
  HostArrays arrays(s.context());
  std::uint64_t mine = 0xcbf29ce484222325ull;
  for (const Parameter& p : s.run.model->parameters())
    mine = fingerprint(mine, arrays.host(s.arena->tensor(s.shard.of > 1 ? p.weight : p.master)));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    require(all[rank] == all[0], "rank ", rank,
            " holds other weights than rank 0: a reduction gave "
            "different bits; nothing is saved. Check that all ranks run the same build");
}

}  // namespace tilefold
