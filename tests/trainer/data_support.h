// Samples and streams for tests of the data.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/trainer/errors.h"
#include "trainer/data/stream_dataset.h"

namespace tilefold {

// A sample, filled. Starts as garbage, so that what is not written shows.
struct Filled {
  std::vector<std::int32_t> tokens, targets, positions;
  Filled(const Dataset& data, Split split, std::int64_t index)
      : tokens(static_cast<std::size_t>(data.context()), -77), targets(tokens), positions(tokens) {
    data.fill(split, index, {tokens, targets, positions});
  }
};

class VectorTokens : public TokenSource {
 public:
  explicit VectorTokens(std::vector<std::int32_t> tokens) : tokens_(std::move(tokens)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    REQUIRE(first >= 0);
    REQUIRE(first + static_cast<std::int64_t>(out.size()) <= size());
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }

 private:
  std::vector<std::int32_t> tokens_;
};

// 0 1 2 ... as one stream: the first `train` for training, the rest for validation. Each token
// tells its own place.
inline StreamDataset counting_stream(std::int64_t train, std::int64_t validation,
                                     std::int64_t context, std::uint64_t seed = 1) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(train + validation));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  const auto source = std::make_shared<VectorTokens>(std::move(tokens));
  return {Vocabulary::tokens(train + validation),
          {source, 0, train},
          {source, train, train + validation},
          context,
          -1,
          seed};
}

}  // namespace tilefold
