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
    site_ = dropout.site;
    head_ = static_cast<std::uint32_t>(head);
    key_ = dropout_key(dropout.state->seed, dropout.state->step);
    first_sample_ = dropout.state->first_sample;
    threshold_ = dropout_threshold(dropout.p);
    kept_ = Real(1) / (Real(1) - Real(dropout.p));
  }

  bool on() const { return on_; }

  // to[j - j0][i - i0] for query rows [i0, i1) and key rows [j0, j1) of the sequence, i1 - i0
  // <= 32.
  void fill(std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1, Real* to) const {
    for (std::int64_t i = i0; i < i1; ++i) {
      const std::int64_t row = first_row_ + i;
      const auto sample = static_cast<std::uint64_t>(first_sample_ + row / period_);
      const auto position = static_cast<std::uint64_t>(row % period_);
      for (std::int64_t j = j0; j < j1;) {
        // A Philox call decides for up to four keys.
        const auto key = static_cast<std::uint64_t>(packed_ ? j % period_ : j);
        std::int64_t count = std::min<std::int64_t>(4 - static_cast<std::int64_t>(key % 4), j1 - j);
        if (packed_) count = std::min(count, period_ - static_cast<std::int64_t>(key));
        const Philox::Words words =
            attention_dropout_words(key_, sample, site_, head_, position, key);
        for (std::int64_t n = 0; n < count; ++n, ++j)
          to[(j - j0) * kPanel + i - i0] =
              words[key % 4 + static_cast<std::uint64_t>(n)] >= threshold_ ? kept_ : Real(0);
      }
    }
    for (std::int64_t i = i1; i < i0 + kPanel; ++i)
      for (std::int64_t j = j0; j < j1; ++j) to[(j - j0) * kPanel + i - i0] = 0;
  }

 private:
  std::int64_t period_, first_row_;
  bool packed_, on_ = false;
  std::uint32_t site_ = 0, head_ = 0, threshold_ = 0;
  std::uint64_t key_ = 0;
  std::int64_t first_sample_ = 0;
  Real kept_ = 1;
};

}  // namespace tilefold::cpu
