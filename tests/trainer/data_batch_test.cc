// Batches: the same global batch for any ranks and micro-batches, nothing twice, nothing lost.
#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/evaluation.h"

namespace tilefold {
namespace {

struct Arrays {
  std::vector<std::int32_t> tokens, targets, positions;
  std::vector<std::int64_t> cu_seqlens;
  explicit Arrays(std::int64_t count)
      : tokens(static_cast<std::size_t>(count)),
        targets(tokens),
        positions(tokens),
        cu_seqlens(static_cast<std::size_t>(count) + 1) {}
  BatchArrays view() { return {tokens, targets, positions, cu_seqlens}; }
};

// Tokens of one step, rows in the order of first_sample.
std::map<std::int64_t, std::vector<std::int32_t>> step_rows(const Dataset& data,
                                                            std::int64_t global, std::int64_t micro,
                                                            int world, std::int64_t consumed) {
  std::map<std::int64_t, std::vector<std::int32_t>> rows;
  std::int64_t counted = 0, filled = 0;
  for (int rank = 0; rank < world; ++rank) {
    BatchLoader loader(data, global, micro, rank, world, consumed);
    REQUIRE(loader.micro_batches() * micro * world == global);
    counted += loader.count_targets();
    Arrays arrays(micro * data.context());
    for (std::int64_t i = 0; i < loader.micro_batches(); ++i) {
      const BatchInfo info = loader.fill(i, arrays.view());
      REQUIRE(info.samples == micro);
      REQUIRE(info.documents == 0);
      REQUIRE(info.max_document == data.context());
      filled += info.targets;
      for (std::int64_t row = 0; row < micro; ++row) {
        const auto* begin = arrays.tokens.data() + row * data.context();
        REQUIRE(rows.emplace(info.first_sample + row,
                             std::vector<std::int32_t>(begin, begin + data.context()))
                    .second);
      }
    }
    loader.advance();
    CHECK(loader.consumed() == consumed + global);
  }
  CHECK(counted == filled);
  return rows;
}

TEST_CASE("the global batch does not depend on ranks or micro-batches") {
  const StreamDataset data = counting_stream(500, 1, 8);
  const auto expected = step_rows(data, 12, 12, 1, 24);
  REQUIRE(expected.size() == 12);
  CHECK(expected.begin()->second == Filled(data, Split::train, 24).tokens);
  for (const auto& [micro, world] :
       {std::pair{1, 1}, {4, 1}, {3, 2}, {6, 2}, {1, 3}, {3, 4}, {1, 12}})
    CHECK(step_rows(data, 12, micro, world, 24) == expected);
}

TEST_CASE("over two ranks and one epoch every sample is read once") {
  const StreamDataset data = counting_stream(401, 1, 4);  // 100 windows
  REQUIRE(data.epoch_samples() == 100);
  std::multiset<std::vector<std::int32_t>> seen;
  for (std::int64_t consumed = 0; consumed < 100; consumed += 10)
    for (const auto& [row, tokens] : step_rows(data, 10, 5, 2, consumed)) seen.insert(tokens);
  const std::set<std::vector<std::int32_t>> once(seen.begin(), seen.end());
  CHECK(seen.size() == 100);
  CHECK(once.size() == 100);
}

TEST_CASE("a run resumed with another layout goes on with the next sample") {
  const StreamDataset data = counting_stream(500, 1, 8);
  BatchLoader whole(data, 8, 2, 0, 1), first(data, 8, 8, 0, 1);
  for (int step = 0; step < 5; ++step) {
    whole.advance();
    first.advance();
  }
  for (int step = 5; step < 10; ++step) {
    CHECK(step_rows(data, 8, 2, 1, whole.consumed()) ==
          step_rows(data, 8, 1, 4, first.consumed() + 8 * (step - 5)));
    whole.advance();
  }
}

TEST_CASE("packed batches: offsets over the flattened tokens") {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back(i % 7 == 6 ? 0 : 1 + i % 5);
  const auto source = std::make_shared<VectorTokens>(tokens);
  const StreamDataset data(Vocabulary::tokens(8), {source, 0, 200}, {source, 0, 200}, 16, 0, 1);
  Arrays arrays(3 * 16);
  const BatchInfo info = fill_batch(data, Split::validation, 0, 3, 0, arrays.view());
  REQUIRE(info.documents >= 6);
  CHECK(arrays.cu_seqlens[0] == 0);
  CHECK(arrays.cu_seqlens[static_cast<std::size_t>(info.documents)] == 48);
  std::int64_t longest = 0;
  for (std::int64_t d = 0; d < info.documents; ++d) {
    const std::int64_t begin = arrays.cu_seqlens[static_cast<std::size_t>(d)];
    const std::int64_t end = arrays.cu_seqlens[static_cast<std::size_t>(d) + 1];
    REQUIRE(end > begin);
    longest = std::max(longest, end - begin);
    for (std::int64_t t = begin; t < end; ++t)
      CHECK(arrays.positions[static_cast<std::size_t>(t)] == t - begin);
    // Ends at an end-of-document id or at a sample's end.
    CHECK((arrays.tokens[static_cast<std::size_t>(end - 1)] == 0 || end % 16 == 0));
    CHECK(begin / 16 == (end - 1) / 16);
  }
  CHECK(info.max_document == longest);
  REQUIRE(info.documents <= 3 * data.most_documents());
}

TEST_CASE("more documents than there is room for are refused, and nothing is overrun") {
  const std::vector<std::int32_t> tokens(200, 0);  // every token is a document
  const auto source = std::make_shared<VectorTokens>(tokens);
  const StreamDataset data(Vocabulary::tokens(8), {source, 0, 200}, {source, 0, 200}, 16, 0, 1);
  REQUIRE(data.most_documents() == 16);
  Arrays arrays(2 * 16);
  arrays.cu_seqlens.assign(40, -77);
  BatchArrays view = arrays.view();
  view.cu_seqlens = view.cu_seqlens.first(33);
  CHECK(fill_batch(data, Split::train, 0, 2, 0, view).documents == 32);
  for (const std::size_t room : {32, 2, 1, 0}) {
    arrays.cu_seqlens.assign(40, -77);
    view.cu_seqlens = std::span(arrays.cu_seqlens).first(room);
    CHECK(has(thrown<Error>([&] { fill_batch(data, Split::train, 0, 2, 0, view); }),
              "more documents than the " + std::to_string(room > 0 ? room - 1 : 0)));
    CHECK(std::count(arrays.cu_seqlens.begin() + static_cast<std::ptrdiff_t>(room),
                     arrays.cu_seqlens.end(), -77) == 40 - static_cast<std::ptrdiff_t>(room));
  }
}

// Losses that depend on the token alone, so that the sum over the split is known.
Evaluation evaluate(const Dataset& data, std::int64_t samples, std::int64_t batch, int world) {
  Evaluation total;
  for (int rank = 0; rank < world; ++rank) {
    EvaluationLoader loader(data, samples, batch, rank, world);
    Evaluation mine;
    Arrays arrays(batch * data.context());
    for (std::int64_t i = 0; i < loader.batches(); ++i) {
      const BatchInfo info = loader.fill(i, arrays.view());
      const auto count = static_cast<std::size_t>(info.samples * data.context());
      std::vector<float> losses(count);
      std::vector<std::int32_t> predictions(count);
      for (std::size_t t = 0; t < count; ++t) {
        const bool scored = arrays.targets[t] >= 0;
        losses[t] = scored ? 0.5f * static_cast<float>(arrays.targets[t]) : NAN;
        predictions[t] = arrays.targets[t] % 3 == 0 ? arrays.targets[t] : 1 << 20;
      }
      mine.add(losses, predictions, std::span(arrays.targets).first(count),
               std::span(arrays.positions).first(count));
    }
    for (std::size_t i = 0; i < total.values().size(); ++i) total.values()[i] += mine.values()[i];
  }
  return total;
}

TEST_CASE("an evaluation is the same for any ranks and batches, and no mean of means") {
  const StreamDataset data = counting_stream(100, 43, 8);  // 42 targets in 6 windows, the last of 2
  REQUIRE(data.validation_samples() == 6);
  double sum = 0, right = 0;
  for (int target = 101; target < 143; ++target) {
    sum += 0.5 * target;
    right += target % 3 == 0;
  }
  for (const int world : {1, 2, 4, 8})
    for (const std::int64_t batch : {1, 4, 7}) {
      Evaluation got = evaluate(data, 6, batch, world);
      CHECK(got.targets() == 42);
      CHECK(got.loss() == Approx(sum / 42).epsilon(1e-14));
      CHECK(got.accuracy() == Approx(right / 42).epsilon(1e-14));
    }
}

TEST_CASE("four tokens at 2 and one at 7 have the mean 3") {
  const std::vector<float> first{2, 2, 2, 2}, second{7, NAN, NAN, NAN};
  const std::vector<std::int32_t> targets{1, 1, 1, 1}, one{1, -1, -1, -1}, none(4, -1),
      predictions(4, 1), positions{0, 1, 2, 3};
  Evaluation e;
  e.add(first, predictions, targets, positions);
  e.add(second, predictions, one, positions);
  CHECK(e.loss() == 3.0);
  CHECK(e.accuracy() == 1.0);
  Evaluation empty;
  empty.add(first, predictions, none, positions);
  CHECK(empty.targets() == 0);
  CHECK(std::isnan(empty.loss()));
}

TEST_CASE("buckets are powers of two") {
  for (const auto& [position, bucket] : {std::pair<std::int64_t, int>{0, 0},
                                         {1, 1},
                                         {2, 2},
                                         {3, 2},
                                         {4, 3},
                                         {1023, 10},
                                         {1024, 11}}) {
    CHECK(Evaluation::bucket_of(position) == bucket);
    CHECK(Evaluation::first_position(bucket) <= position);
    CHECK(Evaluation::last_position(bucket) >= position);
  }
  for (int bucket = 1; bucket < Evaluation::kBuckets; ++bucket)
    CHECK(Evaluation::first_position(bucket) == Evaluation::last_position(bucket - 1) + 1);
  Evaluation e;
  const std::vector<float> losses{1, 2, 4, 8};
  const std::vector<std::int32_t> predictions{5, 5, 0, 5}, targets(4, 5), positions{0, 1, 2, 3};
  e.add(losses, predictions, targets, positions);
  CHECK(e.loss(0) == 1);
  CHECK(e.loss(1) == 2);
  CHECK(e.loss(2) == 6);
  CHECK(e.targets(2) == 2);
  CHECK(e.accuracy(2) == 0.5);
  CHECK(e.accuracy() == 0.75);
}

}  // namespace
}  // namespace tilefold
