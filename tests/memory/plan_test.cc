#include "memory/plan.h"

#include <random>

#include "tests/catch.h"

using namespace tilefold;

namespace {

// Alive at the same time, in the same arena, and sharing a byte.
bool collide(const PlannedTensor& a, const PlannedTensor& b) {
  if (a.phase != b.phase || a.bytes == 0 || b.bytes == 0) return false;
  if (a.phase >= 0 && (a.last < b.born || b.last < a.born)) return false;
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

void check_plan(const Plan& plan) {
  const auto& tensors = plan.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(tensors[i].offset % 64 == 0);
    const std::int64_t end = tensors[i].offset + tensors[i].bytes;
    REQUIRE(end <= (tensors[i].phase < 0 ? plan.persistent_bytes()
                                         : plan.scratch_bytes(tensors[i].phase)));
    for (std::size_t j = 0; j < i; ++j) REQUIRE_FALSE(collide(tensors[i], tensors[j]));
  }
  const KindTotals totals = plan.totals();
  REQUIRE(totals.padding >= 0);
  REQUIRE(totals.sum() == plan.arena_bytes());
  REQUIRE(plan.persistent_bytes() % 4096 == 0);
  REQUIRE(plan.scratch_bytes() % 4096 == 0);
}

}  // namespace

TEST_CASE("tensors that are never alive together share bytes") {
  PlanBuilder builder;
  builder.phase("train");
  const TensorId a = builder.scratch("layer 0", "a", {1000}, DType::f32, Kind::saved, 0, 1);
  const TensorId b = builder.scratch("layer 0", "b", {1000}, DType::f32, Kind::saved, 2, 3);
  const TensorId c = builder.scratch("layer 0", "c", {100}, DType::f32, Kind::workspace, 1, 2);
  const Plan plan = builder.build();
  check_plan(plan);
  CHECK(plan[a].offset == plan[b].offset);
  CHECK(plan[c].offset == 4032);  // 4000, aligned
  CHECK(plan.scratch_bytes() == 8192);
  CHECK(plan.persistent_bytes() == 0);
  const KindTotals totals = plan.totals();
  CHECK(totals.bytes[static_cast<int>(Kind::saved)] == 4000);
  CHECK(totals.bytes[static_cast<int>(Kind::workspace)] == 400);
}

TEST_CASE("an extended life is kept apart") {
  PlanBuilder builder;
  builder.phase("train");
  const TensorId a = builder.scratch("layer 0", "a", {1000}, DType::f32, Kind::saved, 0, 1);
  const TensorId b = builder.scratch("layer 0", "b", {1000}, DType::f32, Kind::saved, 2, 3);
  builder.extend(a, 2);
  builder.extend(a, 1);  // an earlier read changes nothing
  const Plan plan = builder.build();
  check_plan(plan);
  CHECK(plan[a].offset != plan[b].offset);
}

TEST_CASE("scratch is as large as the largest phase, persistent tensors lie in order") {
  PlanBuilder builder;
  const TensorId w = builder.persistent("layer 0", "w", {3}, DType::f32, Kind::weight);
  const TensorId g = builder.persistent("layer 0", "g", {3}, DType::f64, Kind::gradient);
  builder.phase("train");
  builder.scratch("layer 0", "x", {4096}, DType::u8, Kind::saved, 0, 1);
  builder.phase("eval");
  builder.scratch("layer 0", "x", {8192}, DType::u8, Kind::saved, 0, 1);
  const Plan plan = builder.build();
  check_plan(plan);
  CHECK(plan[w].offset == 0);
  CHECK(plan[g].offset == 64);
  CHECK(plan.scratch_bytes(0) == 4096);
  CHECK(plan.scratch_bytes() == 8192);
  CHECK(plan.totals().bytes[static_cast<int>(Kind::saved)] == 8192);
  CHECK(plan.totals().bytes[static_cast<int>(Kind::weight)] == 12);
  CHECK(plan.totals().padding == 4096 - 12 - 24);
}

TEST_CASE("random lives never collide, with and without guards, and the peak is nearly reached") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    PlanBuilder builder;
    const int phases = 1 + round % 3;
    for (int i = 0; i < 5; ++i)
      builder.persistent("p", "t", {static_cast<std::int64_t>(random() % 300)}, DType::bf16,
                         Kind::weight);
    for (int p = 0; p < phases; ++p) {
      builder.phase("phase");
      for (int i = 0; i < 60; ++i) {
        const int born = static_cast<int>(random() % 30);
        builder.scratch("s", "t", {static_cast<std::int64_t>(random() % 5000)}, DType::f32,
                        static_cast<Kind>(random() % kKinds), born,
                        born + static_cast<int>(random() % 10));
      }
    }
    const Plan plain = builder.build();
    check_plan(plain);
    check_plan(builder.build({.guard_bytes = 256}));
    CHECK(plain.totals().padding < plain.arena_bytes() / 3);
  }
}

TEST_CASE("a training step's nested lives leave almost no holes") {
  PlanBuilder builder;
  builder.phase("train");
  const int layers = 8;
  for (int i = 0; i < layers; ++i)
    for (std::int64_t size : {1000000, 300000, 300000, 70000})
      builder.scratch("layer", "saved", {size}, DType::f32, Kind::saved, i, 2 * layers - i);
  for (int s = 0; s <= 2 * layers; ++s)
    builder.scratch("layer", "workspace", {500000}, DType::f32, Kind::workspace, s, s);
  const Plan plan = builder.build();
  check_plan(plan);
  CHECK(plan.totals().padding < plan.arena_bytes() / 100);
}

TEST_CASE("the first tensor over a limit is named in declaration order") {
  PlanBuilder builder;
  const TensorId w = builder.persistent("embedding", "table", {1024}, DType::f32, Kind::weight);
  builder.phase("train");
  builder.scratch("layer 0", "x", {2048}, DType::f32, Kind::saved, 0, 9);
  builder.scratch("layer 0", "short", {4096}, DType::f32, Kind::workspace, 0, 0);
  const TensorId big = builder.scratch("layer 1", "big", {4096}, DType::f32, Kind::saved, 1, 8);
  const TensorId more = builder.scratch("layer 2", "more", {64}, DType::f32, Kind::saved, 2, 7);
  const Plan plan = builder.build();
  check_plan(plan);
  CHECK(plan.arena_bytes() == 4096 + 8192 + 16384 + 4096);
  CHECK(plan.first_over(plan.arena_bytes()) == kNoTensor);
  CHECK(plan.first_over(4095) == w);
  CHECK(plan.first_over(4096 + 8192 + 16384 - 1) == 3 - 1);  // "short" is the first to pass
  CHECK(plan.first_over(4096 + 8192 + 16384) == more);
  // Only the rounding to pages is too much: the tensor that ends last.
  CHECK(plan.first_over(plan.arena_bytes() - 1) == more);
  CHECK(big == 3);
}

TEST_CASE("sizes beyond 32 bits") {
  PlanBuilder builder;
  builder.phase("train");
  builder.scratch("layer 0", "probabilities", {1, 64, 1 << 20, 1 << 20}, DType::bf16, Kind::saved,
                  0, 1);
  const Plan plan = builder.build();
  CHECK(plan.arena_bytes() == (std::int64_t{1} << 47));
  CHECK(plan.totals().sum() == plan.arena_bytes());
}

TEST_CASE("sizes beyond every memory are refused with the tensor's name") {
  const std::int64_t n = std::int64_t{1} << 32;
  PlanBuilder builder;
  builder.phase("train");
  try {
    builder.scratch("layer 3", "probabilities", {1, 2, n, n}, DType::f32, Kind::saved, 0, 1);
    FAIL("a size that is 0 in 64 bits was planned");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).find("layer 3: tensor 'probabilities'") == 0);
  }
  for (int i = 0; i < 64; ++i)  // each fits, not all together
    builder.scratch("layer", "x", {kMostElements}, DType::u8, Kind::saved, 0, 1);
  CHECK_THROWS_AS(builder.build(), UsageError);
}
