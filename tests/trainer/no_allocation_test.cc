// What runs within a training step takes nothing from the heap: batches, sums, metrics, progress.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "tests/trainer/files.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/task_dataset.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/schedule.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t size) noexcept {
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
void* counted_or_throw(std::size_t size) {
  if (void* memory = counted(size)) return memory;
  throw std::bad_alloc();
}
}  // namespace

// Every form, or a sanitizer sees memory of one allocator given back to another.
void* operator new(std::size_t size) { return counted_or_throw(size); }
void* operator new[](std::size_t size) { return counted_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace tilefold {
namespace {

struct Arrays {
  std::vector<std::int32_t> tokens, targets, positions, predictions;
  std::vector<std::int64_t> cu_seqlens;
  std::vector<float> losses;
  explicit Arrays(std::size_t count)
      : tokens(count),
        targets(count),
        positions(count),
        predictions(count),
        cu_seqlens(count + 1),
        losses(count) {}
  BatchArrays view() { return {tokens, targets, positions, cu_seqlens}; }
};

// Allocations of three steps over this dataset.
long allocated(const Dataset& data) {
  Arrays arrays(static_cast<std::size_t>(2 * data.context()));
  BatchLoader loader(data, 4, 2, 0, 1);
  EvaluationLoader evaluation(data, 3, 2, 0, 1);
  Evaluation sums;
  const long before = allocations;
  for (int step = 0; step < 3; ++step) {
    loader.count_targets();
    for (std::int64_t i = 0; i < loader.micro_batches(); ++i) loader.fill(i, arrays.view());
    loader.advance();
    for (std::int64_t i = 0; i < evaluation.batches(); ++i) {
      evaluation.fill(i, arrays.view());
      sums.add(arrays.losses, arrays.predictions, arrays.targets, arrays.positions);
    }
  }
  return allocations - before;
}

TEST_CASE("batches allocate nothing") {
  DataConfig config;
  CHECK(allocated(TaskDataset(config, 128, 1)) == 0);
  config.kind = DataKind::recall;
  config.samples = 100;
  CHECK(allocated(TaskDataset(config, 128, 1)) == 0);
  CHECK(allocated(counting_stream(300, 100, 32)) == 0);
  std::vector<std::int32_t> tokens(5000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 7);
  const auto source = std::make_shared<VectorTokens>(tokens);
  CHECK(allocated(StreamDataset(Vocabulary::tokens(7), {source, 0, 4000}, {source, 4000, 5000}, 300,
                                6, 1)) == 0);
}

TEST_CASE("files of text and tokens allocate nothing once open") {
  const TemporaryDirectory directory;
  Config config;
  config.data.path = directory.file("a");
  config.model.context = 32;
  write_text(config.data.path, std::string(2000, 'a'));
  for (const DataKind kind : {DataKind::text, DataKind::tokens}) {
    config.data.kind = kind;
    CHECK(allocated(*open_dataset(config)) == 0);
  }
}

TEST_CASE("metrics, progress and schedule allocate nothing once open") {
  const TemporaryDirectory directory;
  MetricsFile metrics(directory.file("metrics.jsonl"), 0);
  const int fd = ::open(directory.file("out").c_str(), O_CREAT | O_WRONLY, 0600);
  Progress bar(fd, true, 0, 100), lines(fd, false, 0, 100);
  Evaluation full;
  for (auto& value : full.values()) value = 1.0 / 3;
  const TrainConfig train;
  const long before = allocations;
  for (std::int64_t step = 0; step < 100; ++step) {
    const double rate = learning_rate(train, step);
    metrics.write({step, -1.0 / 3, rate, 1e-300 / 3, step << 40, 1e300 / 3, 1.0 / 3});
    metrics.write(step, full, true);
    bar.step(step, 1.5, 1e5, static_cast<double>(step));
    lines.step(step, 1.5, 1e5, static_cast<double>(step));
  }
  bar.finish();
  CHECK(allocations - before == 0);
  ::close(fd);
}

}  // namespace
}  // namespace tilefold
