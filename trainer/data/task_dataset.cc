#include "trainer/data/task_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "trainer/data/permutation.h"

namespace tilefold {
namespace {

void check(const DataConfig& data, std::int64_t context) {
  if (data.symbols < 1)
    throw UsageError(str("data.symbols is ", data.symbols, "; allowed: 1 or more"));
  if (data.kind == DataKind::copy) {
    if (context < 2)
      throw UsageError(str("model.context is ", context,
                           "; data.kind copy needs 2 or more: a run and the same run again"));
    return;
  }
  if (data.pairs < 1 || data.pairs > data.symbols)
    throw UsageError(str("data.pairs is ", data.pairs, "; allowed: 1 to data.symbols, ",
                         data.symbols, ", for the keys of a sample differ"));
  if (data.filler < 0)
    throw UsageError(str("data.filler is ", data.filler, "; allowed: 0 or more"));
  const std::int64_t needed = 4 * data.pairs + data.filler;
  if (context < needed)
    throw UsageError(str("model.context is ", context, "; data.kind recall with ", data.pairs,
                         " pairs and ", data.filler, " filler tokens needs ", needed,
                         " (4 data.pairs + data.filler) or more"));
}

// Calls put(i, word) for i in [0, count) with the words of a stream, in order.
template <class Put>
void each_word(std::uint64_t seed, DataStream stream, std::uint64_t number, std::int64_t count,
               const Put& put) {
  for (std::int64_t i = 0; i < count; i += 4) {
    const Philox::Words words = draw(seed, stream, number, static_cast<std::uint32_t>(i / 4));
    for (std::int64_t j = i; j < std::min(i + 4, count); ++j)
      put(j, words[static_cast<std::size_t>(j - i)]);
  }
}

DataStream by_split(Split split, DataStream train, DataStream validation) {
  return split == Split::train ? train : validation;
}

}  // namespace

TaskDataset::TaskDataset(const DataConfig& data, std::int64_t context, std::uint64_t seed)
    : kind_(data.kind),
      vocabulary_(
          Vocabulary::symbols(data.kind == DataKind::copy ? data.symbols : 2 * data.symbols)),
      context_(context),
      symbols_(data.symbols),
      pairs_(data.pairs),
      filler_(data.filler),
      samples_(data.samples),
      seed_(seed) {
  check(data, context);
}

std::int64_t TaskDataset::validation_samples() const {
  return std::numeric_limits<std::int64_t>::max();
}

std::uint64_t TaskDataset::content(Split split, std::int64_t index) const {
  if (split == Split::validation || samples_ == 0) return static_cast<std::uint64_t>(index);
  const Permutation order(samples_, seed_, DataStream::epoch_order,
                          static_cast<std::uint64_t>(index / samples_));
  return static_cast<std::uint64_t>(order(index % samples_));
}

void TaskDataset::fill(Split split, std::int64_t index, const Sample& sample) const {
  std::fill(sample.targets.begin(), sample.targets.end(), -1);
  std::iota(sample.positions.begin(), sample.positions.end(), 0);
  const std::uint64_t number = content(split, index);
  if (kind_ == DataKind::copy)
    fill_copy(split, number, sample);
  else
    fill_recall(split, number, sample);
}

void TaskDataset::fill_copy(Split split, std::uint64_t number, const Sample& sample) const {
  const std::int64_t run = context_ / 2;
  std::int32_t* tokens = sample.tokens.data();    // [context]
  std::int32_t* targets = sample.targets.data();  // [context]
  each_word(seed_, by_split(split, DataStream::train_symbols, DataStream::validation_symbols),
            number, run, [&](std::int64_t i, std::uint32_t word) {
              tokens[i] = tokens[run + i] = below(word, symbols_);
              targets[run + i - 1] = tokens[i];
            });
  if (2 * run < context_) tokens[2 * run] = tokens[0];
}

void TaskDataset::fill_recall(Split split, std::uint64_t number, const Sample& sample) const {
  std::int32_t* tokens = sample.tokens.data();    // [context]
  std::int32_t* targets = sample.targets.data();  // [context]
  // Everything that is no key, in the order of places; questions are written over it.
  each_word(seed_, by_split(split, DataStream::train_symbols, DataStream::validation_symbols),
            number, context_, [&](std::int64_t i, std::uint32_t word) {
              tokens[i] = static_cast<std::int32_t>(symbols_) + below(word, symbols_);
            });
  const Permutation keys(symbols_, seed_,
                         by_split(split, DataStream::train_keys, DataStream::validation_keys),
                         number);
  const Permutation order(
      pairs_, seed_, by_split(split, DataStream::train_questions, DataStream::validation_questions),
      number);
  for (std::int64_t pair = 0; pair < pairs_; ++pair)
    tokens[2 * pair] = static_cast<std::int32_t>(keys(pair));
  const std::int64_t questions = 2 * pairs_ + filler_;
  for (std::int64_t i = 0; i < pairs_; ++i) {
    const std::int64_t pair = order(i), at = questions + 2 * i;
    tokens[at] = tokens[2 * pair];
    tokens[at + 1] = targets[at] = tokens[2 * pair + 1];
  }
}

std::int64_t TaskDataset::targets(Split, std::int64_t) const {
  return kind_ == DataKind::copy ? context_ / 2 : pairs_;
}

}  // namespace tilefold
