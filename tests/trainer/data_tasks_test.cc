// copy and recall: layout, ranges, streams, epochs.
#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "trainer/data/task_dataset.h"

namespace tilefold {
namespace {

DataConfig copy_of(std::int64_t symbols, std::int64_t samples = 0) {
  DataConfig data;
  data.kind = DataKind::copy;
  data.symbols = symbols;
  data.samples = samples;
  return data;
}

DataConfig recall_of(std::int64_t symbols, std::int64_t pairs, std::int64_t filler) {
  DataConfig data;
  data.kind = DataKind::recall;
  data.symbols = symbols;
  data.pairs = pairs;
  data.filler = filler;
  return data;
}

TEST_CASE("copy repeats a run and scores the second one") {
  for (const std::int64_t context : {2, 3, 10, 11, 2000}) {
    const TaskDataset data(copy_of(32), context, 1);
    const std::int64_t run = context / 2;
    for (const Split split : {Split::train, Split::validation}) {
      const Filled s(data, split, 7);
      std::int64_t scored = 0;
      for (std::int64_t t = 0; t < context; ++t) {
        INFO("context " << context << " t " << t);
        CHECK(s.tokens[t] >= 0);
        CHECK(s.tokens[t] < 32);
        CHECK(s.positions[t] == t);
        if (t < run) CHECK(s.tokens[t] == s.tokens[t + run]);
        const bool answer = t + 1 >= run && t + 1 < 2 * run;
        CHECK(s.targets[t] == (answer ? s.tokens[t + 1] : -1));
        scored += answer;
      }
      CHECK(data.targets(split, 7) == scored);
    }
  }
  CHECK(TaskDataset(copy_of(32), 10, 1).vocabulary().size() == 32);
}

TEST_CASE("recall asks for every key once, in one place, and scores its value") {
  const std::int64_t symbols = 11, pairs = 9, filler = 14, context = 55;
  const TaskDataset data(recall_of(symbols, pairs, filler), context, 3);
  CHECK(data.vocabulary().size() == 2 * symbols);
  int reordered = 0;
  for (std::int64_t index = 0; index < 20; ++index) {
    const Filled s(data, Split::train, index);
    std::map<int, int> value_of;
    for (std::int64_t i = 0; i < pairs; ++i) value_of[s.tokens[2 * i]] = s.tokens[2 * i + 1];
    REQUIRE(value_of.size() == pairs);  // keys differ
    const std::int64_t first = 2 * pairs + filler;
    bool same_order = true;
    std::set<int> asked;
    for (std::int64_t t = 0; t < context; ++t) {
      const bool question = t >= first && t < first + 2 * pairs && (t - first) % 2 == 0;
      const bool key = question || (t < 2 * pairs && t % 2 == 0);
      CHECK((s.tokens[t] < symbols) == key);
      CHECK(s.tokens[t] >= 0);
      CHECK(s.tokens[t] < 2 * symbols);
      if (!question) {
        CHECK(s.targets[t] == -1);
        continue;
      }
      asked.insert(s.tokens[t]);
      CHECK(s.targets[t] == s.tokens[t + 1]);
      CHECK(s.targets[t] == value_of.at(s.tokens[t]));
      same_order = same_order && s.tokens[t] == s.tokens[t - first];
    }
    CHECK(asked.size() == pairs);
    CHECK(data.targets(Split::train, index) == pairs);
    reordered += !same_order;
  }
  CHECK(reordered >= 19);
}

TEST_CASE("samples differ by number, seed and split, and repeat by them") {
  for (const DataConfig& config : {copy_of(32), recall_of(32, 8, 64)}) {
    const TaskDataset data(config, 128, 1), again(config, 128, 1), other(config, 128, 2);
    std::set<std::vector<std::int32_t>> seen;
    for (std::int64_t i = 0; i < 100; ++i) {
      const Filled train(data, Split::train, i);
      CHECK(train.tokens == Filled(again, Split::train, i).tokens);
      seen.insert(train.tokens);
      seen.insert(Filled(data, Split::validation, i).tokens);
      seen.insert(Filled(other, Split::train, i).tokens);
    }
    CHECK(seen.size() == 300);
    CHECK(data.epoch_samples() == 0);
  }
}

TEST_CASE("a set of samples repeats once an epoch, in another order") {
  const TaskDataset data(copy_of(32, 50), 64, 1);
  CHECK(data.epoch_samples() == 50);
  std::vector<std::vector<std::int32_t>> orders[2];
  for (std::int64_t epoch = 0; epoch < 2; ++epoch)
    for (std::int64_t i = 0; i < 50; ++i)
      orders[epoch].push_back(Filled(data, Split::train, 50 * epoch + i).tokens);
  CHECK(orders[0] != orders[1]);
  const std::set<std::vector<std::int32_t>> first(orders[0].begin(), orders[0].end()),
      second(orders[1].begin(), orders[1].end());
  CHECK(first.size() == 50);
  CHECK(first == second);
}

TEST_CASE("symbols are drawn evenly") {
  const TaskDataset data(copy_of(10), 20000, 5);
  const Filled s(data, Split::train, 0);
  std::map<int, int> counts;
  for (std::int64_t t = 0; t < 10000; ++t) ++counts[s.tokens[t]];
  for (int symbol = 0; symbol < 10; ++symbol) {
    CHECK(counts[symbol] > 850);  // 1000 expected, deviation 30
    CHECK(counts[symbol] < 1150);
  }
}

TEST_CASE("tasks that do not fit are refused by key") {
  const auto refusal = [](const DataConfig& config, std::int64_t context) {
    return thrown<UsageError>([&] { TaskDataset(config, context, 1); });
  };
  CHECK(has(refusal(copy_of(32), 1), "model.context is 1"));
  CHECK(has(refusal(copy_of(0), 8), "data.symbols is 0"));
  CHECK(has(refusal(recall_of(4, 5, 0), 64), "data.pairs is 5"));
  CHECK(has(refusal(recall_of(4, 4, -1), 64), "data.filler is -1"));
  CHECK(has(refusal(recall_of(8, 4, 10), 25), "model.context is 25"));
  CHECK(has(refusal(recall_of(8, 4, 10), 25), "needs 26"));
  CHECK(refusal(recall_of(8, 4, 10), 26) == "");
}

}  // namespace
}  // namespace tilefold
