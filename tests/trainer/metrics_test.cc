#include "trainer/metrics.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/trainer/errors.h"
#include "tests/trainer/files.h"

namespace tilefold {
namespace {

void write_steps(MetricsFile& file, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step)
    file.write({step, 1.5, 1e-3, 0.25, step * 100, 12345.5, 8.1});
}

TEST_CASE("one object a line, at once") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  MetricsFile file(path, 0);
  write_steps(file, 1, 1);
  CHECK(read_text(path) ==
        "{\"step\":1,\"loss\":1.5,\"lr\":0.001,\"grad_norm\":0.25,\"tokens\":100,"
        "\"tokens_per_s\":12345.5,\"ms\":8.1}\n");
  file.write({2, std::nan(""), 1e-3, std::numeric_limits<double>::infinity(), 200, 1, 1});
  const std::string line = lines_of(read_text(path)).at(1);
  CHECK(has(line, "\"loss\":null"));
  CHECK(has(line, "\"grad_norm\":null"));
}

TEST_CASE("evaluations: loss, accuracy of tasks, loss by position") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  MetricsFile file(path, 0);
  Evaluation evaluation;
  const std::vector<float> losses{1, 2, 4};
  const std::vector<std::int32_t> predictions{1, 0, 1}, targets{1, 1, -1}, positions{0, 3, 9};
  evaluation.add(losses, predictions, targets, positions);
  file.write(50, evaluation, true);
  file.write(60, evaluation, false);
  file.write(70, Evaluation(), true);
  const auto lines = lines_of(read_text(path));
  CHECK(lines.at(0) ==
        "{\"step\":50,\"val_loss\":1.5,\"accuracy\":0.5,\"val_loss_by_position\":"
        "[{\"from\":0,\"to\":0,\"loss\":1},{\"from\":2,\"to\":3,\"loss\":2}]}");
  CHECK(!has(lines.at(1), "accuracy"));
  CHECK(lines.at(2) ==
        "{\"step\":70,\"val_loss\":null,\"accuracy\":null,\"val_loss_by_position\":[]}");
}

TEST_CASE("a resumed run cuts what lies after its checkpoint, and half lines") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  {
    MetricsFile file(path, 0);
    write_steps(file, 1, 12);
    file.write(10, Evaluation(), false);
  }
  write_text(path, read_text(path) + "{\"step\":3,\"loss\":1.");
  {
    MetricsFile file(path, 10);
    CHECK(lines_of(read_text(path)).size() == 11);  // 10 steps and an evaluation
    write_steps(file, 11, 11);
  }
  const auto lines = lines_of(read_text(path));
  CHECK(lines.size() == 12);
  CHECK(lines.back().starts_with("{\"step\":11,"));
  { MetricsFile file(path, 10, 9); }  // the evaluation of step 10 is to be made again
  CHECK(lines_of(read_text(path)).size() == 10);
  CHECK(read_text(path).find("val_loss") == std::string::npos);
  MetricsFile again(path, 0);
  CHECK(read_text(path).empty());
}

TEST_CASE(
    "a resumed run without metrics starts them, and a place that cannot be written is named") {
  const TemporaryDirectory directory;
  MetricsFile file(directory.file("new.jsonl"), 10);
  CHECK(read_text(directory.file("new.jsonl")).empty());
  const std::string bad = directory.file("none/metrics.jsonl");
  CHECK(has(thrown<Error>([&] { MetricsFile(bad, 0); }), bad));
}

}  // namespace
}  // namespace tilefold
