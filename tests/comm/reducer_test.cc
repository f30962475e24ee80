// The reducer on one rank, with a communicator that writes down what it is told.
#include "comm/reducer.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace tilefold {
namespace {

class Recorder : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::int64_t buffer_bytes() const override { return 0; }
  void all_reduce_sum(std::span<double>) override {}
  void all_reduce_max(std::span<double>) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
  void barrier() override {}
  void start_sum(Tensor values) override {
    started.emplace_back(values.data, values.numel());
    for (std::int64_t i = 0; i < values.numel(); ++i) values.as<float>()[i] += 1;
  }
  void wait() override { ++waits; }
  void start_scatter(std::span<const Tensor> values) override {
    for (const Tensor& t : values) scattered.emplace_back(t.data, t.numel());
  }
  void start_gather(std::span<const Tensor>) override {}
  [[noreturn]] void abort(int status, const std::string&) override { std::exit(status); }

  std::vector<std::pair<void*, std::int64_t>> started;
  std::vector<std::pair<void*, std::int64_t>> scattered;
  int waits = 0;
};

// Three layers in one buffer, forward order: [0, 4) and [4, 10) | [10, 30) | [30, 36), gap, [40,
// 44).
struct Fixture {
  std::vector<float> memory = std::vector<float>(50, 0.0f);
  Tensor at(std::int64_t begin, std::int64_t count) {
    return Tensor(memory.data() + begin, DType::f32, {count});
  }
  std::vector<GradientReducer::Layer> layers{
      {{at(0, 4), at(4, 6)}}, {{at(10, 20)}}, {{at(30, 6), at(40, 4)}}};
  Recorder comm;
};

TEST_CASE("a bucket starts when its layers are ready, neighbours joined") {
  Fixture f;
  GradientReducer reducer(f.comm, f.layers, 40);  // bytes: 10 floats fill a bucket
  CHECK(reducer.bytes() == 40 * 4);
  CHECK(reducer.buckets() == 3);
  reducer.ready(2);
  CHECK(f.comm.started ==
        std::vector<std::pair<void*, std::int64_t>>{{&f.memory[30], 6}, {&f.memory[40], 4}});
  reducer.ready(1);
  CHECK(f.comm.started.size() == 3);
  CHECK(f.comm.started[2] == std::pair<void*, std::int64_t>{&f.memory[10], 20});
  reducer.ready(0);
  CHECK(f.comm.started[3] == std::pair<void*, std::int64_t>{&f.memory[0], 10});
  CHECK(f.comm.waits == 0);
  reducer.finish();
  CHECK(f.comm.waits == 1);
  for (std::int64_t i = 0; i < 50; ++i) {
    const bool is_gradient = i < 36 || (i >= 40 && i < 44);
    CHECK(f.memory[static_cast<std::size_t>(i)] == (is_gradient ? 1.0f : 0.0f));
  }
}

TEST_CASE("buckets start in one order, whatever order layers get ready in") {
  Fixture f;
  GradientReducer reducer(f.comm, f.layers, 40);
  reducer.ready(0);
  reducer.ready(1);
  CHECK(f.comm.started.empty());
  reducer.ready(2);
  REQUIRE(f.comm.started.size() == 4);
  CHECK(f.comm.started[0].first == &f.memory[30]);
  CHECK(f.comm.started[3].first == &f.memory[0]);
}

TEST_CASE("one large bucket waits for all layers, and steps repeat") {
  Fixture f;
  GradientReducer reducer(f.comm, f.layers);
  CHECK(reducer.buckets() == 1);
  for (int step = 1; step <= 3; ++step) {
    reducer.ready(2);
    reducer.ready(1);
    CHECK(f.comm.started.size() == static_cast<std::size_t>(2 * (step - 1)));
    reducer.ready(0);
    // [40, 44) alone, and all the rest as one range.
    CHECK(f.comm.started.size() == static_cast<std::size_t>(2 * step));
    reducer.finish();
    CHECK(f.comm.waits == step);
    CHECK(f.memory[0] == static_cast<float>(step));
  }
}

TEST_CASE("layers without gradients are ready like others") {
  Fixture f;
  f.layers.push_back({});
  GradientReducer reducer(f.comm, f.layers);
  for (int layer : {3, 2, 1, 0}) reducer.ready(layer);
  reducer.finish();
  CHECK(f.memory[0] == 1.0f);
}

TEST_CASE("calls out of turn are bugs") {
  Fixture f;
  GradientReducer reducer(f.comm, f.layers);
  reducer.ready(2);
  CHECK_THROWS_AS(reducer.ready(2), std::logic_error);
  CHECK_THROWS_AS(reducer.ready(3), std::logic_error);
  CHECK_THROWS_AS(reducer.ready(-1), std::logic_error);
  CHECK_THROWS_AS(reducer.finish(), std::logic_error);
}

}  // namespace
}  // namespace tilefold
