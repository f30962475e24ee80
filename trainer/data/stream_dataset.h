// Samples cut from a stream of tokens: text and token files.
//
// A split of N tokens has T = N - 1 inputs, input p with target p + 1. A window is `context`
// inputs.
//
// Training: the inputs are laid on a circle of K * context places, K = ceil(T / context), the
// places from T on empty. Each epoch draws an offset o in [0, context) and cuts the circle into the
// K windows that start at o + k * context, taken in an order drawn for the epoch:
//
//     0        o            o+c           o+2c        T  K c
//     |--------|-------------|-------------|-----------|..|       c = context
//     |..end 2 |   window 0  |   window 1  | window 2: end 1, empty places, end 2
//
// So every epoch has K samples and shows each target exactly once, at changing positions. Empty
// places hold token 0 and no target; of K windows they touch at most two.
// Validation: windows at 0, context, ...; the last one is filled up with empty places.
//
// With an end-of-document id the stream falls into documents, each ending with that id. Positions
// restart behind it, at the seam of the circle and at empty places. The id is a target of its own
// document; what follows it is no target. The most documents of a sample are counted once, over all
// offsets that an epoch may draw, by reading the stream from end to end.
#pragma once

#include <cstdint>
#include <memory>

#include "trainer/data/dataset.h"
#include "trainer/data/token_source.h"

namespace tilefold {

// Tokens [begin, end) of a source.
struct TokenRange {
  std::shared_ptr<const TokenSource> source;
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

class StreamDataset : public Dataset {
 public:
  // REQUIRES: train has 2 tokens or more; ids lie in the vocabulary; end_of_document -1: none.
  StreamDataset(Vocabulary vocabulary, TokenRange train, TokenRange validation,
                std::int64_t context, std::int64_t end_of_document, std::uint64_t seed);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::int64_t context() const override { return context_; }
  std::int64_t most_documents() const override { return most_documents_; }
  bool task() const override { return false; }
  std::int64_t epoch_samples() const override { return windows(train_); }
  std::int64_t validation_samples() const override { return windows(validation_); }
  void fill(Split split, std::int64_t index, const Sample& sample) const override;
  std::int64_t targets(Split split, std::int64_t index) const override;

 private:
  // A window as runs of inputs: `count` places from sample place `at`, inputs from `first`.
  struct Run {
    std::int64_t at = 0, first = 0, count = 0;
  };
  struct Window {
    Run runs[2];  // the second one behind the seam of the circle; count 0: none
  };

  std::int64_t windows(const TokenRange& range) const;
  std::int64_t count_documents(const TokenRange& range) const;
  Window window(Split split, std::int64_t index) const;
  const TokenRange& range(Split split) const {
    return split == Split::train ? train_ : validation_;
  }

  Vocabulary vocabulary_;
  TokenRange train_, validation_;
  std::int64_t context_, end_of_document_;
  std::uint64_t seed_;
  std::int64_t most_documents_ = 0;
};

}  // namespace tilefold
