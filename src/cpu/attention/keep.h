// Dropout factors of a tile (contract/dropout.h): 0, or 1 / (1 - p).
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/dropout.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {

template <class Real>
class Keep {
 public:
  // Of head `head` of batch element `batch`, whose query rows follow those of the elements before
  // it.
  Keep(const Dropout& dropout, std::int64_t batch, std::int64_t seq_q, std::int64_t head,
       bool packed)
      : period_(dropout.rows_per_sample), first_row_(batch * seq_q), packed_(packed) {
    if (dropout.p == 0) return;
    on_ = true;
    site_ = dropout.site + static_cast<std::uint32_t>(head) * 65536u;
    key_ = dropout_key(dropout.state->seed, dropout.state->step);
    first_sample_ = dropout.state->first_sample;
    threshold_ = dropout_threshold(dropout.p);
    kept_ = Real(1) / (Real(1) - Real(dropout.p));
  }

  bool on() const { return on_; }

  // to[j - j0][i - i0] for query rows [i0, i1) and key rows [j0, j1) of the sequence, i1 - i0 <=
  // 32; what stands behind the last row is of no use.
  void fill(std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1, Real* to) const {
    std::uint32_t positions[kPanel] = {}, samples[kPanel] = {}, words[4][kPanel];
    for (std::int64_t n = 0; n < i1 - i0; ++n) {
      const std::int64_t row = first_row_ + i0 + n;
      positions[n] = static_cast<std::uint32_t>(row % period_);
      samples[n] = static_cast<std::uint32_t>(first_sample_ + row / period_);
    }
    for (std::int64_t j = j0; j < j1;) {
      // One call decides for up to four keys.
      const std::int64_t key = packed_ ? j % period_ : j;
      std::int64_t count = std::min(4 - key % 4, j1 - j);
      if (packed_) count = std::min(count, period_ - key);
      kernels_.words(key_, static_cast<std::uint32_t>(key / 4), positions, site_, samples, words);
      for (std::int64_t k = key % 4; k < key % 4 + count; ++k, ++j)
        for (std::int64_t n = 0; n < kPanel; ++n)
          to[(j - j0) * kPanel + n] = words[k][n] >= threshold_ ? kept_ : Real(0);
    }
  }

 private:
  std::int64_t period_, first_row_;
  bool packed_, on_ = false;
  std::uint32_t site_ = 0, threshold_ = 0;
  std::uint64_t key_ = 0;
  std::int64_t first_sample_ = 0;
  Real kept_ = 1;
  const RandomKernels& kernels_ = random_kernels();
};

}  // namespace tilefold::cpu
