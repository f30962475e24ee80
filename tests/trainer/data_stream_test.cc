// Windows over a stream: every target once an epoch, at changing positions; documents.
#include <random>

#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "trainer/data/permutation.h"

namespace tilefold {
namespace {

TEST_CASE("a permutation takes every place once, and differs by stream and number") {
  for (const std::int64_t size : {1, 2, 3, 5, 16, 17, 1000, 4097}) {
    std::vector<std::int64_t> seen;
    const Permutation order(size, 9, DataStream::epoch_order, 4);
    for (std::int64_t i = 0; i < size; ++i) seen.push_back(order(i));
    std::sort(seen.begin(), seen.end());
    for (std::int64_t i = 0; i < size; ++i) REQUIRE(seen[static_cast<std::size_t>(i)] == i);
  }
  const std::int64_t size = 1000;
  const Permutation a(size, 9, DataStream::epoch_order, 4), b(size, 9, DataStream::epoch_order, 5),
      c(size, 9, DataStream::train_keys, 4), d(size, 10, DataStream::epoch_order, 4);
  int same_b = 0, same_c = 0, same_d = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    same_b += a(i) == b(i);
    same_c += a(i) == c(i);
    same_d += a(i) == d(i);
  }
  CHECK(std::max({same_b, same_c, same_d}) < 12);  // 1 expected
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::int64_t at = Permutation(huge, 1, DataStream::epoch_order, 0)(huge - 1);
  CHECK(at >= 0);
  CHECK(at < huge);
}

TEST_CASE("small permutations send each place everywhere") {
  int counts[5][5] = {};
  for (std::uint64_t number = 0; number < 5000; ++number) {
    const Permutation order(5, 1, DataStream::epoch_order, number);
    for (std::int64_t i = 0; i < 5; ++i) ++counts[i][order(i)];
  }
  for (const auto& row : counts)
    for (const int count : row) {
      CHECK(count > 850);  // 1000 expected, deviation 28
      CHECK(count < 1150);
    }
}

TEST_CASE("numbers below a count take the whole range") {
  CHECK(below(0xFFFFFFFFu, std::int64_t{7}) == 6);
  CHECK(below(0u, std::int64_t{7}) == 0);
  const std::int64_t count = (std::int64_t{1} << 40) + 3;
  CHECK(below(0xFFFFFFFFu, 0xFFFFFFFFu, count) == count - 1);
  CHECK(below(0x80000000u, 0u, count) == count / 2);
  CHECK(below(0u, 0u, count) == 0);
}

TEST_CASE("an epoch shows every target once, at changing positions") {
  // Train sizes below, at and above whole numbers of windows; a window as long as the split.
  for (const std::int64_t train : {2, 5, 16, 17, 18, 64, 65, 66, 1000})
    for (const std::int64_t context : {1, 2, 8, 16, 64}) {
      const StreamDataset data = counting_stream(train, 1, context);
      const std::int64_t windows = data.epoch_samples();
      REQUIRE(windows == (train - 1 + context - 1) / context);
      std::set<std::vector<std::int32_t>> orders;
      for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<int> seen(static_cast<std::size_t>(train));
        std::vector<std::int32_t> order;
        for (std::int64_t i = 0; i < windows; ++i) {
          const std::int64_t index = epoch * windows + i;
          const Filled s(data, Split::train, index);
          std::int64_t scored = 0;
          for (std::size_t t = 0; t < s.tokens.size(); ++t) {
            REQUIRE(s.positions[t] == static_cast<std::int32_t>(t));
            order.push_back(s.targets[t]);
            if (s.targets[t] < 0) {
              REQUIRE(s.targets[t] == -1);
              REQUIRE(s.tokens[t] == 0);
              continue;
            }
            REQUIRE(s.targets[t] == s.tokens[t] + 1);
            ++seen[static_cast<std::size_t>(s.targets[t])];
            ++scored;
          }
          REQUIRE(data.targets(Split::train, index) == scored);
        }
        REQUIRE(seen[0] == 0);
        REQUIRE(std::count(seen.begin() + 1, seen.end(), 1) == train - 1);
        orders.insert(order);
      }
      if (context == 16 && train > 64) CHECK(orders.size() == 4);
    }
}

TEST_CASE("offsets reach every place of a window") {
  const StreamDataset data = counting_stream(1000, 1, 8);
  std::set<std::int32_t> starts;
  for (std::int64_t epoch = 0; epoch < 100; ++epoch)
    starts.insert(Filled(data, Split::train, epoch * data.epoch_samples()).tokens[0] % 8);
  CHECK(starts.size() == 8);
}

TEST_CASE("validation windows cover the split once, the last one too") {
  for (const std::int64_t size : {1, 2, 16, 17, 18, 33, 40}) {
    const StreamDataset data = counting_stream(100, size, 16);
    REQUIRE(data.validation_samples() == (size - 1 + 15) / 16);
    std::int64_t expected = 100;  // the next input
    for (std::int64_t i = 0; i < data.validation_samples(); ++i) {
      const Filled s(data, Split::validation, i);
      std::int64_t scored = 0;
      for (std::size_t t = 0; t < 16; ++t) {
        CHECK(s.positions[t] == static_cast<std::int32_t>(t));
        if (expected == 100 + size - 1) {
          CHECK(s.targets[t] == -1);
          continue;
        }
        CHECK(s.tokens[t] == expected);
        CHECK(s.targets[t] == ++expected);
        ++scored;
      }
      CHECK(data.targets(Split::validation, i) == scored);
    }
    CHECK(expected == 100 + size - 1);
  }
}

TEST_CASE("documents: positions restart and no target crosses an end") {
  // Documents of 5, 1, 12, 3, ... tokens, each ending with id 0; ids count up within a document.
  std::vector<std::int32_t> tokens;
  std::int64_t crossing = 0;
  for (const int length : {5, 1, 12, 3, 1, 1, 30, 7, 2, 9, 40, 4}) {
    for (int i = 1; i < length; ++i) tokens.push_back(i);
    tokens.push_back(0);
  }
  const auto size = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t i = 0; i + 1 < size; ++i) crossing += tokens[static_cast<std::size_t>(i)] == 0;
  const auto source = std::make_shared<VectorTokens>(tokens);
  const StreamDataset data(Vocabulary::tokens(64), {source, 0, size}, {source, 0, size}, 16, 0, 1);
  CHECK(data.packed());
  for (const Split split : {Split::train, Split::validation}) {
    const std::int64_t windows =
        split == Split::train ? 3 * data.epoch_samples() : data.validation_samples();
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < windows; ++i) {
      const Filled s(data, split, i);
      std::int64_t scored = 0;
      REQUIRE(s.positions[0] == 0);
      for (std::size_t t = 0; t < 16; ++t) {
        if (t > 0 && s.positions[t] != 0) {
          REQUIRE(s.positions[t] == s.positions[t - 1] + 1);
          // The same document goes on: ids count up to its end.
          if (s.targets[t] >= 0) REQUIRE(s.tokens[t] == s.tokens[t - 1] + 1);
        }
        if (t > 0 && s.tokens[t - 1] == 0 && s.targets[t] >= 0) REQUIRE(s.positions[t] == 0);
        if (s.targets[t] < 0) continue;
        ++scored;
        REQUIRE(s.tokens[t] != 0);
        REQUIRE((s.targets[t] == s.tokens[t] + 1 || s.targets[t] == 0));
      }
      REQUIRE(data.targets(split, i) == scored);
      total += scored;
    }
    CHECK(total == (split == Split::train ? 3 : 1) * (size - 1 - crossing));
  }
}

// Positions of 0 in the sample that starts at place w of the circle, from the definition: documents
// start at the seam, behind the last input and behind each end id among the inputs.
std::int64_t most_by_hand(const std::vector<std::int32_t>& tokens, std::int64_t context) {
  const auto inputs = static_cast<std::int64_t>(tokens.size()) - 1;
  const std::int64_t places = (inputs + context - 1) / context * context;
  std::int64_t most = 0;
  for (std::int64_t w = 0; w < places; ++w) {
    std::int64_t documents = 1;
    for (std::int64_t i = 1; i < context; ++i) {
      const std::int64_t place = (w + i) % places;
      documents += place == 0 || place == inputs ||
                   (place < inputs && tokens[static_cast<std::size_t>(place - 1)] == 0);
    }
    most = std::max(most, documents);
  }
  return most;
}

std::int64_t documents_in(const Filled& sample) {
  return std::count(sample.positions.begin(), sample.positions.end(), 0);
}

TEST_CASE("the most documents of a sample: by hand, and of all samples that are drawn") {
  std::mt19937 random(5);
  for (const std::int64_t context : {1, 2, 3, 8, 16})
    for (const std::int64_t size : {2, 3, 8, 9, 16, 17, 18, 33, 50})
      for (const unsigned every : {1u, 2u, 5u, 20u, 1000000u}) {  // 1: every token ends a document
        std::vector<std::int32_t> tokens(static_cast<std::size_t>(size));
        for (std::int32_t& token : tokens) token = random() % every == 0 ? 0 : 1;
        INFO("context " << context << ", " << size << " tokens, one end in " << every);
        const auto source = std::make_shared<VectorTokens>(tokens);
        const TokenRange whole{source, 0, size}, none{source, size, size};
        const StreamDataset data(Vocabulary::tokens(2), whole, none, context, 0, random());
        REQUIRE(data.most_documents() == most_by_hand(tokens, context));
        std::int64_t drawn = 0;  // over epochs enough that each offset comes up (all but surely)
        for (std::int64_t i = 0; i < 40 * context * data.epoch_samples(); ++i)
          drawn = std::max(drawn, documents_in(Filled(data, Split::train, i)));
        REQUIRE(drawn == data.most_documents());
        const StreamDataset with(Vocabulary::tokens(2), {source, 0, 2}, whole, context, 0, 1);
        for (std::int64_t i = 0; i < with.validation_samples(); ++i)
          REQUIRE(documents_in(Filled(with, Split::validation, i)) <= with.most_documents());
      }
}

TEST_CASE("documents are counted across the pieces that a long stream is read in") {
  std::vector<std::int32_t> tokens(200000, 1);
  for (const std::size_t at : {65530, 65535, 65536, 65540, 131071, 131072}) tokens[at] = 0;
  const auto source = std::make_shared<VectorTokens>(tokens);
  const TokenRange whole{source, 0, 200000};
  CHECK(StreamDataset(Vocabulary::tokens(2), whole, whole, 100, 0, 1).most_documents() == 5);
  CHECK(StreamDataset(Vocabulary::tokens(2), whole, whole, 70000, 0, 1).most_documents() == 7);
  CHECK(StreamDataset(Vocabulary::tokens(2), whole, whole, 100, -1, 1).most_documents() == 0);
  CHECK(!StreamDataset(Vocabulary::tokens(2), whole, whole, 100, -1, 1).packed());
}

}  // namespace
}  // namespace tilefold
