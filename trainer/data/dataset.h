// Samples by number: what a run trains and is judged on. A sample is `context` tokens with the
// target of each; which rank or micro-batch asks for it never changes it.
//
// Training samples are numbered without end in the order in which a run sees them: sample i belongs
// to epoch i / epoch_samples(), and within an epoch the order is a permutation drawn from seed and
// epoch. A run's position in its data is therefore one number, the samples consumed.
// Validation samples are numbered 0 .. validation_samples() - 1, the same in every run.
//
// Thread-safe: const members keep no state and allocate nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "trainer/config.h"
#include "trainer/data/vocabulary.h"

namespace tilefold {

enum class Split : std::uint8_t { train, validation };

// Filled by a dataset; each [context].
struct Sample {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> targets;    // -1: not scored
  std::span<std::int32_t> positions;  // count up from 0; with documents, from 0 at each one's start
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::int64_t context() const = 0;
  // The most documents that any sample of either split holds; 0: samples are not cut into
  // documents.
  virtual std::int64_t most_documents() const = 0;
  // Samples hold several documents: positions of 0 mark where each starts.
  bool packed() const { return most_documents() > 0; }
  // The score tells whether the context is used, so accuracy is worth reporting (copy, recall).
  virtual bool task() const = 0;

  // Samples of an epoch; 0: never repeats.
  virtual std::int64_t epoch_samples() const = 0;
  // Samples that cover the validation split once; 0: it is empty. Made tasks have as many as asked
  // for, and say the largest number.
  virtual std::int64_t validation_samples() const = 0;

  // REQUIRES: index >= 0 (train) or in [0, validation_samples()).
  virtual void fill(Split split, std::int64_t index, const Sample& sample) const = 0;
  // Targets of that sample, without filling it.
  virtual std::int64_t targets(Split split, std::int64_t index) const = 0;
};

// The dataset of a config, read and checked: every id lies in the vocabulary, the vocabulary fits
// in model.vocab, and the training split fills one step. Throws Error (a file) or UsageError (a
// setting) with one line that names file or key, what is needed and what was found.
// `trained`: the vocabulary of a model that is there already; the data is read with its ids, and
// what has none is an Error.
std::unique_ptr<Dataset> open_dataset(const Config& config, const Vocabulary* trained = nullptr);

// model.vocab as the model will have it: the setting, or the data's size where that is 0.
std::int64_t model_vocabulary(const Config& config, const Vocabulary& vocabulary);

// Sequences that an evaluation takes: train.eval_samples, at most what there is; by default all of
// the validation split, or kTaskSamples of a made task.
constexpr std::int64_t kTaskSamples = 64;
std::int64_t evaluation_samples(const TrainConfig& train, const Dataset& data);

}  // namespace tilefold
