// From a config to its dataset.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "trainer/data/files.h"
#include "trainer/data/stream_dataset.h"
#include "trainer/data/task_dataset.h"

namespace tilefold {
namespace {

const char* name_of(DataKind kind) {
  static constexpr const char* kNames[] = {"text", "tokens", "recall", "copy"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The two splits: a file each, or the head and the tail of one.
std::pair<TokenRange, TokenRange> split(const DataConfig& data, const TokenFiles& files) {
  const std::int64_t size = files.train->size();
  if (files.validation != nullptr)
    return {{files.train, 0, size}, {files.validation, 0, files.validation->size()}};
  const auto train =
      static_cast<std::int64_t>(std::floor(static_cast<double>(size) * (1 - data.val_fraction)));
  return {{files.train, 0, train}, {files.train, train, size}};
}

void check_sizes(const Config& config, const TokenRange& train, const TokenRange& validation) {
  const DataConfig& data = config.data;
  const std::int64_t batch = config.train.global_batch, context = config.model.context;
  const std::int64_t needed = batch * context + 1;
  const bool whole = !data.val_path.empty() || data.val_fraction == 0;
  const std::string kept = whole ? ""
                                 : str(" for training, of ", train.source->size(),
                                       " (data.val_fraction ", data.val_fraction, ")");
  require(train.size() >= needed, data.path, ": ", train.size(), " tokens found", kept, ", ",
          needed, " needed for one step (train.global_batch ", batch, " x model.context ", context,
          " + 1); use a longer file, or a smaller batch or context");
  if (whole && data.val_path.empty()) return;
  const std::string& path = data.val_path.empty() ? data.path : data.val_path;
  require(validation.size() >= 2, path, ": ", validation.size(),
          " tokens found for validation, 2 needed; use a longer file",
          data.val_path.empty() ? " or a larger data.val_fraction" : "");
}

// A file that is not there is a setting to mend, so it is named by its key.
void check_readable(const char* key, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || !std::ifstream(path).good())
    throw UsageError(str(key, " is ", path, ", which is no file that can be read; give --set ", key,
                         "=FILE, or set it in the config"));
}

// What the ids of this kind of data are.
VocabularyKind vocabulary_kind(const DataConfig& data) {
  if (data.kind == DataKind::tokens) return VocabularyKind::tokens;
  if (data.kind != DataKind::text) return VocabularyKind::symbols;
  return data.unit == TextUnit::bytes ? VocabularyKind::bytes : VocabularyKind::characters;
}

std::unique_ptr<Dataset> open_stream(const Config& config, const Vocabulary* trained) {
  const DataConfig& data = config.data;
  check_readable("data.path", data.path);
  check_readable("data.val_path", data.val_path);
  TokenFiles files =
      data.kind == DataKind::text ? open_text(data, trained) : open_tokens(config, trained);
  const std::int64_t vocab = files.vocabulary.size();
  if (data.end_of_document < -1 || data.end_of_document >= vocab)
    throw UsageError(str("data.end_of_document is ", data.end_of_document,
                         "; allowed: -1 (one stream), or a token of ", data.path, ", 0 to ",
                         vocab - 1));
  auto [train, validation] = split(data, files);
  check_sizes(config, train, validation);
  return std::make_unique<StreamDataset>(
      std::move(files.vocabulary), std::move(train), std::move(validation), config.model.context,
      data.end_of_document, static_cast<std::uint64_t>(config.run.seed));
}

std::unique_ptr<Dataset> open_task(const Config& config) {
  if (config.data.end_of_document != -1)
    throw UsageError(str("data.end_of_document is ", config.data.end_of_document, "; data.kind ",
                         name_of(config.data.kind), " has no documents; allowed: -1"));
  return std::make_unique<TaskDataset>(config.data, config.model.context,
                                       static_cast<std::uint64_t>(config.run.seed));
}

}  // namespace

std::int64_t model_vocabulary(const Config& config, const Vocabulary& vocabulary) {
  const std::int64_t vocab = config.model.vocab;
  if (vocab != 0 && vocab < vocabulary.size())
    throw UsageError(str("model.vocab is ", vocab, "; data.kind ", name_of(config.data.kind),
                         config.data.path.empty() ? "" : " of ", config.data.path, " has ",
                         vocabulary.size(), " different tokens; allowed: ", vocabulary.size(),
                         " or more, or 0 for as many"));
  return vocab != 0 ? vocab : vocabulary.size();
}

std::unique_ptr<Dataset> open_dataset(const Config& config, const Vocabulary* trained) {
  if (trained && trained->kind() != vocabulary_kind(config.data))
    throw UsageError(str(
        "data.kind is ", name_of(config.data.kind),
        config.data.kind == DataKind::text
            ? (config.data.unit == TextUnit::bytes ? ", data.unit bytes" : ", data.unit characters")
            : "",
        "; the model was trained on ", name_of(trained->kind()), "; allowed: data of that kind"));
  const DataKind kind = config.data.kind;
  const bool stream = kind == DataKind::text || kind == DataKind::tokens;
  if (stream && config.data.path.empty())
    throw UsageError(str("data.path is empty; data.kind ", name_of(kind),
                         " reads a file: set data.path, or --set data.path=FILE"));
  auto dataset = stream ? open_stream(config, trained) : open_task(config);
  model_vocabulary(config, dataset->vocabulary());
  return dataset;
}

std::int64_t evaluation_samples(const TrainConfig& train, const Dataset& data) {
  const std::int64_t there = data.validation_samples();
  if (train.eval_samples > 0) return std::min(train.eval_samples, there);
  return data.task() ? kTaskSamples : there;
}

}  // namespace tilefold
