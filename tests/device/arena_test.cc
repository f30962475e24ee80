// The arena on a device made for the test: plain memory, counted.
#include "device/arena.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/catch.h"

using namespace tilefold;

namespace {

class PlainMemory : public Memory {
 public:
  PlainMemory(std::int64_t bytes, std::int64_t* counter)
      : words_(static_cast<std::size_t>(bytes / 8 + 8)), counter_(counter) {
    data_ = reinterpret_cast<std::byte*>(words_.data());
    data_ += (64 - reinterpret_cast<std::uintptr_t>(data_) % 64) % 64;
    bytes_ = bytes;
    *counter_ += bytes;
  }
  ~PlainMemory() override { *counter_ -= bytes_; }

 private:
  std::vector<std::uint64_t> words_;
  std::int64_t* counter_;
};

class PlainDevice : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  const Backend& backend() const override { return backend_; }
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override {
    return std::make_unique<PlainMemory>(bytes, &allocated_);
  }
  std::unique_ptr<Memory> allocate_host(std::int64_t) override { return nullptr; }
  std::int64_t allocated_bytes() const override { return allocated_; }
  std::int64_t free_bytes() const override { return 0; }
  void copy_to_device(Stream&, void*, const void*, std::int64_t) override {}
  void copy_to_host(Stream&, void*, const void*, std::int64_t) override {}

 private:
  DeviceInfo info_;
  Backend backend_{};
  std::int64_t allocated_ = 0;
};

void write(Tensor t) {
  float* x = t.as<float>();
  std::fill(x, x + t.numel(), 1.0f);
}

bool all_nan(Tensor t) {
  const float* x = t.as<float>();
  return std::all_of(x, x + t.numel(), [](float v) { return std::isnan(v); });
}

struct Example {
  Example() {
    weight = builder.persistent("layer 0", "weight", {10}, DType::f32, Kind::weight);
    builder.phase("train");
    input = builder.scratch("input", "tokens", {6}, DType::f32, Kind::input, 0, 1);
    a = builder.scratch("layer 0", "a", {100}, DType::f32, Kind::saved, 0, 1);
    b = builder.scratch("layer 0", "b", {100}, DType::f32, Kind::saved, 1, 2);
    c = builder.scratch("layer 1", "c", {100}, DType::f32, Kind::saved, 2, 2);
  }
  PlanBuilder builder;
  TensorId weight, input, a, b, c;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("arenas are taken in two pieces of exactly the planned bytes") {
  PlainDevice device;
  const Plan plan = Example().builder.build();
  {
    Arena arena(device, plan);
    CHECK(device.allocated_bytes() == plan.arena_bytes());
    CHECK(arena.tensor(kNoTensor).data == nullptr);
    CHECK(arena.tensor(0).shape == Shape{10});
  }
  CHECK(device.allocated_bytes() == 0);
}

TEST_CASE("a plan above the limit is refused with the layer and tensor that does not fit") {
  PlainDevice device;
  const Plan plan = Example().builder.build();
  Arena fits(device, plan, plan.arena_bytes());
  const std::string message = message_of([&] { Arena arena(device, plan, 800); });
  CHECK(message ==
        "layer 0: tensor 'b' [100] f32 (400 bytes, saved) does not fit: the plan needs 8192 bytes, "
        "the limit is 800; use a shorter context, a smaller micro-batch or tiled attention, or "
        "raise memory.limit");
  CHECK(device.allocated_bytes() == plan.arena_bytes());
}

TEST_CASE("the watch: poison outside of lives, and what was never written") {
  PlainDevice device;
  const Example example;
  const Plan plan = example.builder.build({.guard_bytes = 64});
  Arena arena(device, plan, 0, Watch::on);
  CHECK(all_nan(arena.tensor(example.weight)));
  write(arena.tensor(example.input));
  arena.begin(0);
  arena.step(0);
  CHECK_FALSE(all_nan(arena.tensor(example.input)));
  CHECK(all_nan(arena.tensor(example.a)));
  write(arena.tensor(example.a));
  arena.step(1);
  CHECK(all_nan(arena.tensor(example.b)));
  write(arena.tensor(example.b));
  CHECK_FALSE(all_nan(arena.tensor(example.a)));
  arena.step(2);
  const bool moved = plan[example.a].offset != plan[example.c].offset;
  CHECK((moved || all_nan(arena.tensor(example.c))));  // c may take a's place: poisoned between
  arena.tensor(example.c).as<float>()[99] = 1;
  arena.end();
  CHECK_FALSE(all_nan(arena.tensor(example.b)));  // alive at the last step: readable
  CHECK(arena.untouched() == std::vector<std::string>{"layer 0/weight", "layer 1/c"});
}

TEST_CASE("the watch names the tensor behind which something was written") {
  PlainDevice device;
  const Example example;
  const Plan plan = example.builder.build({.guard_bytes = 64});
  for (TensorId id : {example.weight, example.a}) {
    Arena arena(device, plan, 0, Watch::on);
    arena.begin(0);
    arena.step(0);
    arena.tensor(id).as<float>()[plan[id].shape.numel()] = 1;
    const std::string message = message_of([&] { arena.step(1); });
    CHECK(message.find("behind tensor '" + plan[id].name + "'") != std::string::npos);
  }
}

TEST_CASE("the watch finds writes to dead tensors") {
  PlainDevice device;
  const Example example;
  const Plan plan = example.builder.build({.guard_bytes = 64});
  Arena arena(device, plan, 0, Watch::on);
  arena.begin(0);
  arena.step(0);
  write(arena.tensor(example.b));  // not born yet
  const std::string message = message_of([&] { arena.step(1); });
  CHECK(message.find("of no tensor alive") != std::string::npos);
}

TEST_CASE("caches keep their content from pass to pass of a phase") {
  PlainDevice device;
  PlanBuilder builder;
  builder.phase("generate");
  const TensorId cache = builder.scratch("layer 0", "k", {4}, DType::f32, Kind::cache, 0, 3);
  const TensorId x = builder.scratch("layer 0", "x", {4}, DType::f32, Kind::saved, 0, 1);
  builder.phase("eval");
  builder.scratch("layer 0", "x", {64}, DType::f32, Kind::saved, 0, 1);
  const Plan plan = builder.build({.guard_bytes = 64});
  Arena arena(device, plan, 0, Watch::on);
  arena.begin(0);
  arena.step(0);
  write(arena.tensor(cache));
  write(arena.tensor(x));
  arena.end();
  arena.begin(0);
  arena.step(0);
  CHECK_FALSE(all_nan(arena.tensor(cache)));
  CHECK(all_nan(arena.tensor(x)));
  arena.end();
  arena.begin(1);
  arena.end();
  arena.begin(0);
  arena.step(0);
  CHECK(all_nan(arena.tensor(cache)));
}
