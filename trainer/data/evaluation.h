// What an evaluation adds up: sums of losses, never means, so that batches and ranks of any size
// combine by addition.
//
//   loss      = sum of losses / targets        (natural log)
//   accuracy  = targets whose prediction is right / targets
// The same by position in the document, which shows whether far context is used: bucket 0 holds
// position 0, bucket b > 0 positions 2^(b-1) .. 2^b - 1. Without a target, loss and accuracy are
// NaN.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace tilefold {

class Evaluation {
 public:
  static constexpr int kBuckets = 41;  // positions up to 2^40

  // Adds a batch: each [tokens]; target -1 is not scored, nor read of losses and predictions.
  void add(std::span<const float> losses, std::span<const std::int32_t> predictions,
           std::span<const std::int32_t> targets, std::span<const std::int32_t> positions);

  // All of it, to be summed over ranks in place.
  std::span<double> values() { return values_; }

  double targets() const;
  double loss() const;
  double accuracy() const;

  static int bucket_of(std::int64_t position);
  static std::int64_t first_position(int bucket);
  static std::int64_t last_position(int bucket);
  double targets(int bucket) const { return values_[index(bucket) + 1]; }
  double loss(int bucket) const { return values_[index(bucket)] / targets(bucket); }
  double accuracy(int bucket) const { return values_[index(bucket) + 2] / targets(bucket); }

 private:
  static std::size_t index(int bucket) { return 3 * static_cast<std::size_t>(bucket); }

  std::array<double, 3 * kBuckets> values_{};  // [bucket]: sum of losses, targets, right ones
};

}  // namespace tilefold
