#include <algorithm>
#include <utility>
#include <vector>

#include "io/token_file.h"
#include "trainer/data/files.h"

namespace tilefold {
namespace {

class FileTokens : public TokenSource {
 public:
  FileTokens(TokenFile file, std::int64_t vocab) : file_(std::move(file)), vocab_(vocab) {}
  std::int64_t size() const override { return file_.size(); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    file_.read(first, vocab_, out);
  }

 private:
  TokenFile file_;
  std::int64_t vocab_;
};

// Throws Error naming file and position of the first id outside the vocabulary.
void check_all(const TokenFile& file, std::int64_t vocab) {
  std::vector<std::int32_t> piece(std::size_t{1} << 16);
  for (std::int64_t at = 0; at < file.size(); at += static_cast<std::int64_t>(piece.size())) {
    const auto count = std::min<std::int64_t>(file.size() - at, piece.size());
    file.read(at, vocab, std::span(piece).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace

TokenFiles open_tokens(const Config& config, const Vocabulary* trained) {
  std::vector<TokenFile> files;
  files.emplace_back(config.data.path, config.data.dataset);
  if (!config.data.val_path.empty()) files.emplace_back(config.data.val_path, config.data.dataset);

  std::int64_t vocab = config.data.vocab > 0 ? config.data.vocab : config.model.vocab;
  if (trained) vocab = trained->size();
  if (vocab > 0)
    for (const TokenFile& file : files) check_all(file, vocab);
  else
    for (const TokenFile& file : files) vocab = std::max(vocab, file.vocabulary());

  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (TokenFile& file : files)
    sources.push_back(std::make_shared<FileTokens>(std::move(file), vocab));
  return {Vocabulary::tokens(vocab), sources[0], sources.size() > 1 ? sources[1] : nullptr};
}

}  // namespace tilefold
