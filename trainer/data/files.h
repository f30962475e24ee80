// The files of a stream, read and checked, and the vocabulary they share.
#pragma once

#include <memory>

#include "trainer/config.h"
#include "trainer/data/token_source.h"
#include "trainer/data/vocabulary.h"

namespace tilefold {

struct TokenFiles {
  Vocabulary vocabulary;
  std::shared_ptr<const TokenSource> train;
  std::shared_ptr<const TokenSource> validation;  // of data.val_path; null without it
};

// data.kind text: bytes, or the characters of path and val_path together, or those of `trained`.
TokenFiles open_text(const DataConfig& data, const Vocabulary* trained);

// data.kind tokens. The vocabulary has data.vocab ids, or model.vocab where that is 0, or as many
// as the largest id asks for where both are. Every id is looked at: Error names the file and
// position of one outside, ids that only pad the model's vocabulary among them. `trained` says how
// many there are in place of the config.
TokenFiles open_tokens(const Config& config, const Vocabulary* trained);

}  // namespace tilefold
