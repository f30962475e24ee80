#include "comm/reducer.h"

#include <algorithm>

#include "base/error.h"

namespace tilefold {
namespace {

// Adds `next` to `ranges`, as one with those that it touches in memory.
void add_range(std::vector<Tensor>& ranges, Tensor next) {
  for (std::size_t i = 0; i < ranges.size();) {
    const Tensor& range = ranges[i];
    auto* begin = static_cast<std::byte*>(range.data);
    auto* other = static_cast<std::byte*>(next.data);
    const bool before = begin + range.bytes() == other, after = other + next.bytes() == begin;
    if (range.dtype != next.dtype || !(before || after)) {
      ++i;
      continue;
    }
    next = Tensor(before ? range.data : next.data, next.dtype, {range.numel() + next.numel()});
    ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(i));
    i = 0;  // the longer range may touch an earlier one
  }
  ranges.push_back(next);
}

}  // namespace

GradientReducer::GradientReducer(Communicator& comm, const std::vector<Layer>& layers,
                                 std::int64_t bucket_bytes, Result result)
    : comm_(comm),
      result_(result), buckets_of_layer_(layers.size()), is_ready_(layers.size(), false) {
  expect(bucket_bytes > 0, "bucket_bytes must be above 0");
  std::int64_t filled = bucket_bytes;  // of the latest bucket; full: the first range opens one
  for (std::size_t layer = layers.size(); layer-- > 0;) {
    std::vector<int>& mine = buckets_of_layer_[layer];
    for (const Tensor& grad : layers[layer].grads) {
      expect(grad.dense() && (grad.dtype == DType::f32 || grad.dtype == DType::f64),
             "gradients must be dense, f32 or f64");
      if (grad.numel() == 0) continue;
      if (filled >= bucket_bytes) {
        buckets_.emplace_back();
        filled = 0;
      }
      Bucket& bucket = buckets_.back();
      const Tensor range(grad.data, grad.dtype, {grad.numel()});
      if (result == Result::whole)
        add_range(bucket.ranges, range);
      else
        bucket.ranges.push_back(range);
      filled += grad.bytes();
      const int index = static_cast<int>(buckets_.size()) - 1;
      if (mine.empty() || mine.back() != index) {
        mine.push_back(index);
        ++bucket.layers;
      }
    }
  }
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.layers;
}

void GradientReducer::ready(int layer) {
  const auto index = static_cast<std::size_t>(layer);
  expect(index < is_ready_.size() && !is_ready_[index], "a layer is ready once between finishes");
  is_ready_[index] = true;
  for (const int bucket : buckets_of_layer_[index])
    --buckets_[static_cast<std::size_t>(bucket)].waiting;
  for (; started_ < buckets_.size() && buckets_[started_].waiting == 0; ++started_) {
    const std::vector<Tensor>& ranges = buckets_[started_].ranges;
    if (result_ == Result::parts)
      comm_.start_scatter(ranges);
    else
      for (const Tensor& range : ranges) comm_.start_sum(range);
  }
}

void GradientReducer::finish() {
  expect(std::find(is_ready_.begin(), is_ready_.end(), false) == is_ready_.end(),
         "finish() before every layer was ready");
  comm_.wait();
  started_ = 0;
  is_ready_.assign(is_ready_.size(), false);
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.layers;
}

std::int64_t GradientReducer::bytes() const {
  std::int64_t total = 0;
  for (const Bucket& bucket : buckets_)
    for (const Tensor& range : bucket.ranges) total += range.bytes();
  return total;
}

}  // namespace tilefold
