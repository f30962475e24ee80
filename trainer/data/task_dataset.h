// Made tasks whose score tells whether far context is used. Sample number x is a function of seed,
// split and x alone; the two splits draw from streams that never meet. With data.samples the
// training set is samples 0 .. samples - 1, each once an epoch in an order drawn for the epoch;
// without, every sample is new.
//
// copy      L = context / 2 symbols s drawn at random, then the same run again:
//             token    s0 s1 .. s(L-1)  s0 s1 .. s(L-1)         ids 0 .. symbols - 1
//             target   .  .  .. s0      s1 s2 .. .              answers lie L tokens back
//           An odd context ends with one more s0 without a target.
//
// recall    P pairs, F fillers, then the P keys again in another order, each followed by its value:
//             token    k1 v1 k2 v2 .. kP vP  f1 f2 .. fF  k'1 v'1 k'2 v'2 .. k'P v'P  f f ..
//             target    .  .  .  .     .  .   .  .     .  v'1  .  v'2  .      v'P  .
//           Keys are P different ids of 0 .. symbols - 1; values, and fillers, any of
//           symbols .. 2 symbols - 1, so that a key stands in one place before it is asked for.
//           What the context has left is filled up at the end, without targets.
#pragma once

#include <cstdint>

#include "trainer/data/dataset.h"

namespace tilefold {

class TaskDataset : public Dataset {
 public:
  // data.kind copy or recall. Throws UsageError naming the key where the task does not fit in the
  // context or has too few symbols.
  TaskDataset(const DataConfig& data, std::int64_t context, std::uint64_t seed);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::int64_t context() const override { return context_; }
  std::int64_t most_documents() const override { return 0; }
  bool task() const override { return true; }
  std::int64_t epoch_samples() const override { return samples_; }
  std::int64_t validation_samples() const override;
  void fill(Split split, std::int64_t index, const Sample& sample) const override;
  std::int64_t targets(Split split, std::int64_t index) const override;

 private:
  std::uint64_t content(Split split, std::int64_t index) const;
  void fill_copy(Split split, std::uint64_t number, const Sample& sample) const;
  void fill_recall(Split split, std::uint64_t number, const Sample& sample) const;

  DataKind kind_;
  Vocabulary vocabulary_;
  std::int64_t context_, symbols_, pairs_, filler_, samples_;
  std::uint64_t seed_;
};

}  // namespace tilefold
