// The memory report: what it sums, what it says, the JSON that others read.
#include <sys/mman.h>

#include "tests/catch.h"
#include "tests/trainer/errors.h"
#include "trainer/report/layers.h"
#include "trainer/report/memory_report.h"
#include "trainer/report/resident.h"

namespace tilefold {
namespace {

// Three alike layers between an embedding and a head; training is the larger phase.
Plan small_plan(bool naive = false) {
  PlanBuilder builder;
  builder.persistent("embedding", "tokens", {32, 16}, DType::f32, Kind::weight);
  for (const char* layer : {"layer 0", "layer 1", "layer 2"}) {
    builder.persistent(layer, "qkv", {16, 48}, DType::f32, Kind::weight);
    builder.persistent(layer, "qkv grad", {16, 48}, DType::f32, Kind::gradient);
  }
  builder.persistent("head", "norm", {16}, DType::f32, Kind::weight);
  builder.phase("train");
  int step = 0;
  for (const char* layer : {"layer 0", "layer 1", "layer 2"}) {
    builder.scratch(layer, "q", {2, 100, 2, 8}, DType::bf16, Kind::saved, step, 10 - step);
    builder.scratch(layer, "m", {2, 2, 100}, DType::f32, Kind::saved, step, 10 - step);
    if (naive)
      builder.scratch(layer, "p", {2, 2, 100, 100}, DType::bf16, Kind::saved, step, 10 - step);
    builder.scratch(layer, "scores", {2, 64, 64}, DType::f32, Kind::workspace, step, step);
    ++step;
  }
  builder.phase("eval");
  builder.scratch("layer 0", "hidden", {2, 100, 16}, DType::f32, Kind::recomputed, 0, 1);
  return builder.build();
}

constexpr std::int64_t kSaved = 2 * 100 * 2 * 8 * 2 + 2 * 2 * 100 * 4;

TEST_CASE("rows hold the persistent tensors and those of the largest phase") {
  const Plan plan = small_plan();
  CHECK(plan.phases()[static_cast<std::size_t>(plan.largest_phase())] == "train");
  const auto rows = layer_rows(plan);
  REQUIRE(rows.size() == 5);
  CHECK(rows[0].name == "embedding");
  CHECK(rows[1].name == "layer 0");
  CHECK(rows[4].name == "head");
  CHECK(rows[1].of(Kind::saved) == kSaved);
  CHECK(rows[1].of(Kind::weight) == 16 * 48 * 4);
  CHECK(rows[1].tensors.size() == 5);  // not the eval phase's
  const auto groups = group_layers(rows);
  REQUIRE(groups.size() == 3);
  CHECK(groups[1].name == "layers 0-2");
  CHECK(groups[1].count() == 3);
}

TEST_CASE("the plan as JSON") {
  const Plan plan = small_plan();
  const std::string json = plan_json(plan);
  CHECK(has(json, "\"name\":\"layer 1\",\"saved_bytes\":" + std::to_string(kSaved)));
  CHECK(
      has(json, R"({"name":"q","shape":[2,100,2,8],"dtype":"bf16","kind":"saved","bytes":6400})"));
  CHECK(has(json, "\"arena_bytes\":" + std::to_string(plan.arena_bytes())));
  const KindTotals totals = plan.totals();
  CHECK(has(json, "\"saved\":" + std::to_string(totals.bytes[static_cast<int>(Kind::saved)])));
  CHECK(has(json, "\"padding\":" + std::to_string(totals.padding)));
  std::int64_t sum = totals.padding;
  for (const std::int64_t bytes : totals.bytes) sum += bytes;
  CHECK(sum == plan.arena_bytes());
  CHECK(std::count(json.begin(), json.end(), '{') == std::count(json.begin(), json.end(), '}'));
}

TEST_CASE("what a GPU's driver counts: before the arenas, the arenas, since") {
  const Plan plan = small_plan();
  MeasuredMemory measured;
  measured.arenas = 4096;
  measured.device_start = 500000;
  measured.device_end = 505096;
  const std::string table = memory_table(plan, nullptr, measured);
  CHECK(has(table, "device    505,096 bytes in use"));
  CHECK(has(table, " 500,000\n"));
  CHECK(has(table, " 1,000 (0.20% of all)"));
  CHECK(!has(table, "NCCL"));
  CHECK(!has(memory_table(plan, nullptr, {}), "device"));
  measured.nccl = 900;
  const std::string of_ranks = memory_table(plan, nullptr, measured);
  CHECK(has(of_ranks, "NCCL (channels, buffers)"));
  CHECK(has(of_ranks, " 900\n"));
  CHECK(has(of_ranks, " 100 (0.02% of all)"));
  CHECK(has(memory_json(plan, measured), "\"device_start\":500000,\"device_end\":505096"));
}

TEST_CASE("memory.json holds predicted and measured; what was not measured is null") {
  const Plan plan = small_plan();
  MeasuredMemory measured;
  measured.arenas = plan.arena_bytes();
  const std::string bytes = std::to_string(plan.arena_bytes());
  const std::string json = memory_json(plan, measured);
  CHECK(has(json, "\"totals\":{\"predicted\":" + bytes + ",\"measured\":" + bytes + "}"));
  CHECK(has(json, "\"resident_peak\":null"));
  CHECK(has(memory_json(plan, {}), "\"measured\":null"));
}

TEST_CASE("tables show equal layers once, with the naive plan beside them") {
  const Plan plan = small_plan(), naive = small_plan(true);
  const std::string table = plan_table(plan, &naive);
  CHECK(has(table, "layers 0-2, each"));
  CHECK(!has(table, "layer 1\n"));
  CHECK(has(table, "[2, 100, 2, 8]"));
  CHECK(has(table, "8,000"));
  CHECK(has(table, "with naive attention " + human_bytes(kSaved + 2 * 2 * 100 * 100 * 2)));
  CHECK(has(table, "train"));
  CHECK(!has(plan_table(plan, nullptr), "naive"));

  MeasuredMemory measured;
  measured.arenas = plan.arena_bytes();
  measured.resident_start = 10 << 20;
  measured.resident_peak = 12 << 20;
  measured.outside = 3 << 20;
  const std::string end = memory_table(plan, &naive, measured);
  CHECK(has(end, "3.00 MiB taken outside the arenas"));
  CHECK(has(end, "layers 0-2, each"));
  CHECK(has(end, "difference 0"));
  CHECK(has(end, "10.0 MiB resident at the start, 12.0 MiB at the peak: 2.00 MiB above"));
  CHECK(!has(memory_table(plan, nullptr, {}), "measured"));
}

TEST_CASE("sizes for people") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(std::int64_t{512} << 20) == "512 MiB");
  // K and V of a layer at 128,000 positions and width 4096 in 16 bits.
  CHECK(human_bytes(std::int64_t{2} * 128000 * 4096 * 2) == "1.95 GiB");
  CHECK(human_bytes((std::int64_t{1} << 20) - 1) == "1.00 MiB");
}

TEST_CASE("the longest context is exact") {
  for (const std::int64_t memory : {1, 99, 100, 101, 12345, 1000000}) {
    const auto bytes = [](std::int64_t n) { return 100 + 7 * n; };
    const std::int64_t most = 50000;
    const std::int64_t expected =
        memory < 107 ? 0 : std::min<std::int64_t>(most, (memory - 100) / 7);
    CHECK(longest_context(bytes, memory, most) == expected);
  }
  CHECK(longest_context([](std::int64_t n) { return n * n; }, 1000000, 1 << 30) == 1000);
  CHECK(longest_context([](std::int64_t) { return std::int64_t{1}; }, 1, 1000) == 1000);
  CHECK(longest_context([](std::int64_t) { return std::int64_t{2}; }, 1, 1000) == 0);
}

TEST_CASE("resident memory follows what is touched") {
  const ResidentMemory before = resident_memory();
  REQUIRE(before.now > 0);
  CHECK(before.peak >= before.now);
  const std::size_t size = std::size_t{64} << 20;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  for (std::size_t i = 0; i < size; i += 4096) static_cast<char*>(memory)[i] = 1;
  const ResidentMemory during = resident_memory();
  const auto* bytes = static_cast<const std::byte*>(memory);
  CHECK(resident_bytes({bytes, size}) == static_cast<std::int64_t>(size));
  madvise(static_cast<char*>(memory) + size / 4, size / 2, MADV_DONTNEED);
  CHECK(resident_bytes({bytes, size}) == static_cast<std::int64_t>(size / 2));
  CHECK(resident_bytes({bytes, size / 2 + 1}) == static_cast<std::int64_t>(size / 4));
  munmap(memory, size);
  const ResidentMemory after = resident_memory();
  const auto grown = static_cast<std::int64_t>(size) * 9 / 10;
  CHECK(during.now - before.now > grown);
  CHECK(during.now - after.now > grown);
  CHECK(during.anonymous - before.anonymous > grown);
  CHECK(after.peak > during.now - (1 << 20));  // the system counts in batches of pages
}

}  // namespace
}  // namespace tilefold
