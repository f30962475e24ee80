#include <string>
#include <utility>
#include <vector>

#include "io/text_file.h"
#include "trainer/data/files.h"

namespace tilefold {
namespace {

class ByteTokens : public TokenSource {
 public:
  explicit ByteTokens(std::string text) : text_(std::move(text)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(text_.size()); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    const char* bytes = text_.data() + first;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(bytes[i]);
  }

 private:
  std::string text_;
};

class CharacterTokens : public TokenSource {
 public:
  explicit CharacterTokens(std::vector<std::int32_t> ids) : ids_(std::move(ids)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    const std::int32_t* ids = ids_.data() + first;
    std::copy(ids, ids + out.size(), out.begin());
  }

 private:
  std::vector<std::int32_t> ids_;
};

}  // namespace

TokenFiles open_text(const DataConfig& data, const Vocabulary* trained) {
  std::vector<std::string> paths{data.path};
  if (!data.val_path.empty()) paths.push_back(data.val_path);
  std::vector<std::string> texts;
  for (const std::string& path : paths) texts.push_back(read_text_file(path));

  std::vector<std::shared_ptr<const TokenSource>> sources;
  Vocabulary vocabulary = Vocabulary::bytes();
  if (data.unit == TextUnit::bytes) {
    for (std::string& text : texts)
      sources.push_back(std::make_shared<ByteTokens>(std::move(text)));
  } else {
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    vocabulary = trained ? *trained : Vocabulary::characters(views, paths);
    for (std::size_t i = 0; i < texts.size(); ++i)
      sources.push_back(std::make_shared<CharacterTokens>(vocabulary.encode(texts[i], paths[i])));
  }
  return {std::move(vocabulary), sources[0], sources.size() > 1 ? sources[1] : nullptr};
}

}  // namespace tilefold
