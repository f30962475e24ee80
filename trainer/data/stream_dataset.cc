#include "trainer/data/stream_dataset.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/data/permutation.h"

namespace tilefold {

StreamDataset::StreamDataset(Vocabulary vocabulary, TokenRange train, TokenRange validation,
                             std::int64_t context, std::int64_t end_of_document, std::uint64_t seed)
    : vocabulary_(std::move(vocabulary)),
      train_(std::move(train)),
      validation_(std::move(validation)),
      context_(context),
      end_of_document_(end_of_document),
      seed_(seed) {
  expect(context_ > 0 && train_.size() >= 2, "a stream needs a context and two tokens");
  if (end_of_document_ >= 0)
    most_documents_ = std::max(count_documents(train_), count_documents(validation_));
}

// On the circle documents start at place 0, behind the last input and behind each end id. The
// sample from place w on holds the document at w and each that starts at w + 1 .. w + context - 1,
// and w is any place: offset and window reach all of them. (Validation takes some of these
// samples.)
std::int64_t StreamDataset::count_documents(const TokenRange& range) const {
  const std::int64_t inputs = range.size() - 1, places = windows(range) * context_;
  if (inputs < 1) return 0;
  std::deque<std::int64_t> near;  // starts in the last context - 1 places, up to the newest
  std::size_t most = 0;
  const auto start = [&](std::int64_t place) {
    if (!near.empty() && near.back() == place) return;
    near.push_back(place);
    while (!near.empty() && near.front() <= place - (context_ - 1)) near.pop_front();
    most = std::max(most, near.size());
  };
  std::vector<std::int32_t> piece(std::size_t{1} << 16);
  const auto walk = [&](std::int64_t turn, std::int64_t end) {  // places 0 .. end - 1 of the circle
    start(turn);
    for (std::int64_t at = 0; at < std::min(inputs, end);) {
      const auto count = std::min<std::int64_t>(std::min(inputs, end) - at, std::ssize(piece));
      const auto tokens = std::span(piece).first(static_cast<std::size_t>(count));
      range.source->read(range.begin + at, tokens);
      for (auto i = tokens.begin();
           (i = std::find(i, tokens.end(), end_of_document_)) != tokens.end();)
        start(turn + at + (++i - tokens.begin()));
      at += count;
    }
    if (inputs < end) start(turn + inputs);
  };
  walk(0, places);
  walk(places, context_);  // samples across the seam
  return 1 + static_cast<std::int64_t>(most);
}

std::int64_t StreamDataset::windows(const TokenRange& range) const {
  const std::int64_t inputs = std::max<std::int64_t>(range.size() - 1, 0);
  return (inputs + context_ - 1) / context_;
}

StreamDataset::Window StreamDataset::window(Split split, std::int64_t index) const {
  const std::int64_t inputs = range(split).size() - 1, count = windows(range(split));
  std::int64_t start = index * context_;
  if (split == Split::train) {
    const auto epoch = static_cast<std::uint64_t>(index / count);
    const Philox::Words words = draw(seed_, DataStream::epoch_offset, epoch, 0);
    const std::int64_t offset = below(words[0], words[1], context_);
    start = offset +
            Permutation(count, seed_, DataStream::epoch_order, epoch)(index % count) * context_;
  }
  Window found;
  found.runs[0] = {0, start, std::clamp<std::int64_t>(inputs - start, 0, context_)};
  const std::int64_t seam = count * context_ - start;  // sample place of input 0
  if (seam < context_) found.runs[1] = {seam, 0, std::min(context_ - seam, inputs)};
  return found;
}

void StreamDataset::fill(Split split, std::int64_t index, const Sample& sample) const {
  const TokenRange& from = range(split);
  const Window cut = window(split, index);
  std::fill(sample.tokens.begin(), sample.tokens.end(), 0);
  std::fill(sample.targets.begin(), sample.targets.end(), -1);
  std::iota(sample.positions.begin(), sample.positions.end(), 0);
  for (const Run& run : cut.runs) {
    if (run.count == 0) continue;
    const auto at = static_cast<std::size_t>(run.at), count = static_cast<std::size_t>(run.count);
    from.source->read(from.begin + run.first, sample.tokens.subspan(at, count));
    from.source->read(from.begin + run.first + 1, sample.targets.subspan(at, count));
  }
  if (!packed()) return;

  const auto restart = [&](std::int64_t place) {
    if (place < context_) sample.positions[static_cast<std::size_t>(place)] = 0;
  };
  for (const Run& run : cut.runs) {
    if (run.count == 0) continue;
    restart(run.at);
    restart(run.at + run.count);
    for (std::int64_t i = run.at; i < run.at + run.count; ++i) {
      if (sample.tokens[static_cast<std::size_t>(i)] != end_of_document_) continue;
      sample.targets[static_cast<std::size_t>(i)] = -1;
      restart(i + 1);
    }
  }
  for (std::size_t i = 1; i < sample.positions.size(); ++i)
    if (sample.positions[i] != 0) sample.positions[i] = sample.positions[i - 1] + 1;
}

std::int64_t StreamDataset::targets(Split split, std::int64_t index) const {
  std::int64_t total = 0;
  std::array<std::int32_t, 1024> piece;
  for (const Run& run : window(split, index).runs) {
    total += run.count;
    if (!packed()) continue;
    for (std::int64_t done = 0; done < run.count; done += static_cast<std::int64_t>(piece.size())) {
      const auto count = std::min<std::int64_t>(run.count - done, piece.size());
      const std::span<std::int32_t> tokens(piece.data(), static_cast<std::size_t>(count));
      range(split).source->read(range(split).begin + run.first + done, tokens);
      total -=
          std::count(tokens.begin(), tokens.end(), static_cast<std::int32_t>(end_of_document_));
    }
  }
  return total;
}

}  // namespace tilefold
