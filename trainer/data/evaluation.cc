#include "trainer/data/evaluation.h"

#include <bit>

#include "base/error.h"

namespace tilefold {

int Evaluation::bucket_of(std::int64_t position) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(position)));
}

std::int64_t Evaluation::first_position(int bucket) {
  return bucket == 0 ? 0 : std::int64_t{1} << (bucket - 1);
}

std::int64_t Evaluation::last_position(int bucket) { return (std::int64_t{1} << bucket) - 1; }

void Evaluation::add(std::span<const float> losses, std::span<const std::int32_t> predictions,
                     std::span<const std::int32_t> targets,
                     std::span<const std::int32_t> positions) {
  expect(losses.size() >= targets.size() && predictions.size() >= targets.size() &&
             positions.size() >= targets.size(),
         "an evaluation of arrays of different sizes");
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    double* sums = values_.data() + index(bucket_of(positions[t]));  // [loss, targets, right]
    sums[0] += static_cast<double>(losses[t]);
    sums[1] += 1;
    sums[2] += predictions[t] == targets[t] ? 1 : 0;
  }
}

double Evaluation::targets() const {
  double total = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) total += values_[index(bucket) + 1];
  return total;
}

double Evaluation::loss() const {
  double total = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) total += values_[index(bucket)];
  return total / targets();
}

double Evaluation::accuracy() const {
  double total = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) total += values_[index(bucket) + 2];
  return total / targets();
}

}  // namespace tilefold
