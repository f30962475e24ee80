#include "cpu/nn/dropout_scale.h"

#include "base/error.h"
#include "contract/workspace.h"

namespace tilefold::cpu {
namespace {

// The words of elements 4 * group .. for `count` groups.
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void group_words(
    std::uint64_t key, std::uint64_t sample, std::uint32_t site, std::uint64_t group,
    std::int64_t count, std::uint32_t* words) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const Philox::Words four =
        dropout_words(key, sample, site, 4 * (group + static_cast<std::uint64_t>(i)));
    words[4 * i] = four[0];
    words[4 * i + 1] = four[1];
    words[4 * i + 2] = four[2];
    words[4 * i + 3] = four[3];
  }
}

}  // namespace

template <class A>
void dropout_scale(const Dropout& dropout, std::int64_t row, std::int64_t width, std::int64_t begin,
                   std::int64_t count, A* scale) {
  expect(count <= kDropoutChunk, "more dropout factors than fit a chunk");
  const std::uint64_t key = dropout_key(dropout.state->seed, dropout.state->step);
  const std::int64_t sample = dropout.state->first_sample + row / dropout.rows_per_sample;
  const std::int64_t first = row % dropout.rows_per_sample * width + begin;
  std::uint32_t words[kDropoutChunk + 8];  // the first and the last group may be cut
  group_words(key, static_cast<std::uint64_t>(sample), dropout.site,
              static_cast<std::uint64_t>(first / 4), ceil_div(first % 4 + count, 4), words);
  const std::uint32_t threshold = dropout_threshold(dropout.p);
  const A kept = A(1) / (A(1) - static_cast<A>(dropout.p));
  const std::uint32_t* at = words + first % 4;
#pragma omp simd
  for (std::int64_t c = 0; c < count; ++c) scale[c] = at[c] >= threshold ? kept : A(0);
}

template void dropout_scale(const Dropout&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                            float*);
template void dropout_scale(const Dropout&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                            double*);

}  // namespace tilefold::cpu
