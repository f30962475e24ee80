#include "trainer/data/batch_loader.h"

#include <algorithm>

#include "base/error.h"

namespace tilefold {

BatchInfo fill_batch(const Dataset& data, Split split, std::int64_t first, std::int64_t count,
                     std::int64_t row, const BatchArrays& out) {
  const auto context = static_cast<std::size_t>(data.context());
  const std::size_t tokens = static_cast<std::size_t>(count) * context;
  expect(
      out.tokens.size() >= tokens && out.targets.size() >= tokens && out.positions.size() >= tokens,
      "batch arrays are smaller than the batch");
  BatchInfo info;
  info.samples = count;
  info.first_sample = row;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    data.fill(split, first + static_cast<std::int64_t>(i),
              {out.tokens.subspan(i * context, context), out.targets.subspan(i * context, context),
               out.positions.subspan(i * context, context)});
  info.targets =
      std::count_if(out.targets.begin(), out.targets.begin() + static_cast<std::ptrdiff_t>(tokens),
                    [](std::int32_t target) { return target >= 0; });
  info.max_document = data.context();
  if (!data.packed()) return info;

  info.max_document = 0;
  std::size_t documents = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    if (out.positions[t] == 0) {
      require(documents + 1 < out.cu_seqlens.size(), "data: ", count, " samples from number ",
              first, " on have more documents than the ",
              std::max<std::ptrdiff_t>(std::ssize(out.cu_seqlens) - 1, 0),
              " there is room for; its files must not change after they were opened: start again");
      out.cu_seqlens[documents++] = static_cast<std::int64_t>(t);
    }
    info.max_document = std::max<std::int64_t>(info.max_document, out.positions[t] + 1);
  }
  out.cu_seqlens[documents] = static_cast<std::int64_t>(tokens);
  info.documents = static_cast<std::int64_t>(documents);
  return info;
}

BatchLoader::BatchLoader(const Dataset& data, std::int64_t global, std::int64_t micro, int rank,
                         int world, std::int64_t consumed)
    : data_(data),
      global_(global),
      per_rank_(global / world),
      micro_(micro),
      first_row_(rank * per_rank_),
      consumed_(consumed) {
  expect(rank >= 0 && rank < world && per_rank_ > 0 && global % world == 0 && micro > 0 &&
             per_rank_ % micro == 0 && consumed >= 0,
         "a global batch that does not divide");
}

std::int64_t BatchLoader::count_targets() const {
  std::int64_t total = 0;
  for (std::int64_t row = first_row_; row < first_row_ + per_rank_; ++row)
    total += data_.targets(Split::train, consumed_ + row);
  return total;
}

BatchInfo BatchLoader::fill(std::int64_t i, const BatchArrays& out) const {
  expect(i >= 0 && i < micro_batches(), "micro-batch outside the step");
  const std::int64_t row = first_row_ + i * micro_;
  return fill_batch(data_, Split::train, consumed_ + row, micro_, row, out);
}

EvaluationLoader::EvaluationLoader(const Dataset& data, std::int64_t samples, std::int64_t batch,
                                   int rank, int world)
    : data_(data), batch_(batch) {
  expect(batch > 0 && rank >= 0 && rank < world && samples >= 0 &&
             samples <= data.validation_samples(),
         "an evaluation of more samples than there are");
  // The first samples % world ranks have one more.
  const std::int64_t share = samples / world, more = samples % world;
  begin_ = rank * share + std::min<std::int64_t>(rank, more);
  end_ = begin_ + share + (rank < more ? 1 : 0);
}

BatchInfo EvaluationLoader::fill(std::int64_t i, const BatchArrays& out) const {
  expect(i >= 0 && i < batches(), "batch outside the evaluation");
  const std::int64_t first = begin_ + i * batch_;
  return fill_batch(data_, Split::validation, first, std::min(batch_, end_ - first), first, out);
}

}  // namespace tilefold
