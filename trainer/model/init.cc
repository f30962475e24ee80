// First weights, and what is made from weights.
//
//   element i of parameter k   deviation * normal[i % 4] of
//   words = Philox(seed, {i / 4 low, i / 4 high, k, "init"})
//   (normal[0], normal[1]) = sqrt(-2 ln u) (cos, sin)(2 pi w)    u = (words[0] + 1) / 2^32
//   (normal[2], normal[3]) likewise from words[2], words[3]      w = words[1] / 2^32
// Box, Muller, "A note on the generation of random normal deviates" (1958). Rounded to float32,
// then to the dtype of the weights: every device starts from the same bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "base/part.h"
#include "base/philox.h"
#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {
namespace {

constexpr std::uint32_t kInitTag = 0x696e6974;  // "init": no dropout draws from these counters
constexpr std::int64_t kChunk = 1 << 16;        // elements drawn at a time

// Four standard normals: elements 4 * group .. + 3.
std::array<double, 4> normals(std::uint64_t seed, std::uint32_t parameter, std::uint64_t group) {
  const Philox::Words words =
      Philox::random(seed, {static_cast<std::uint32_t>(group),
                            static_cast<std::uint32_t>(group >> 32), parameter, kInitTag});
  std::array<double, 4> out{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

template <class T>
void convert(std::span<const float> from, std::vector<std::byte>& to) {
  auto* out = reinterpret_cast<T*>(to.data());
  for (std::size_t i = 0; i < from.size(); ++i) out[i] = T(from[i]);
}

// Copies float32 host values into elements [first, ...) of a device tensor.
class Writer {
 public:
  explicit Writer(Context ctx) : ctx_(ctx) {}
  void write(Tensor to, std::int64_t first, std::span<const float> values) {
    const std::int64_t size = size_of(to.dtype);
    bytes_.resize(values.size() * static_cast<std::size_t>(size));
    if (to.dtype == DType::f32) convert<float>(values, bytes_);
    if (to.dtype == DType::bf16) convert<bf16>(values, bytes_);
    if (to.dtype == DType::f64) convert<double>(values, bytes_);
    ctx_.device.copy_to_device(ctx_.stream, static_cast<std::byte*>(to.data) + first * size,
                               bytes_.data(), static_cast<std::int64_t>(bytes_.size()));
    ctx_.stream.synchronize();  // bytes_ is written again
  }

 private:
  Context ctx_;
  std::vector<std::byte> bytes_;
};

void draw(const Parameter& p, std::uint64_t seed, std::uint32_t index, std::int64_t first,
          std::vector<float>& values) {
  if (p.init_deviation == 0) {
    std::fill(values.begin(), values.end(), p.init_one ? 1.0f : 0.0f);
    return;
  }
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const std::uint64_t group = static_cast<std::uint64_t>(first) / 4 + i / 4;
    const std::array<double, 4> z = normals(seed, index, group);
    for (std::size_t c = 0; c < 4 && i + c < values.size(); ++c)
      values[i + c] = static_cast<float>(p.init_deviation * z[c]);
  }
}

}  // namespace

void Model::initialize(Context ctx, Arena& arena, std::uint64_t seed, Shard shard) const {
  Writer writer(ctx);
  std::vector<float> values;
  for (std::size_t k = 0; k < parts_->parameters.size(); ++k) {
    const Parameter& p = parts_->parameters[k];
    for (std::int64_t first = 0; first < p.shape.numel(); first += kChunk) {
      values.resize(static_cast<std::size_t>(std::min(kChunk, p.shape.numel() - first)));
      draw(p, seed, static_cast<std::uint32_t>(k), first, values);
      const Tensor to = arena.tensor(p.master != kNoTensor ? p.master : p.weight);
      // What of it lies here: all, or where it meets the shard's part.
      const std::int64_t begin = to.numel() == p.shape.numel() ? 0 : shard.rank * to.numel();
      const std::int64_t from = std::max(first, begin);
      const std::int64_t end =
          std::min(first + static_cast<std::int64_t>(values.size()), begin + to.numel());
      if (from < end)
        writer.write(to, from - begin,
                     std::span(values).subspan(static_cast<std::size_t>(from - first),
                                               static_cast<std::size_t>(end - from)));
    }
  }
  refresh(ctx, arena, shard);
}

void Model::refresh(Context ctx, Arena& arena, Shard shard) const {
  for (const Parameter& p : parts_->parameters) {
    if (p.master == kNoTensor || p.master == p.weight) continue;
    const Tensor master = arena.tensor(p.master), weight = arena.tensor(p.weight);
    ops::copy(
        ctx,
        {.src = master,
         .dst = master.numel() == weight.numel() ? weight : part_of(weight, shard.rank, shard.of)});
  }
  if (parts_->weights.rope == kNoTensor) return;
  const Tensor table = arena.tensor(parts_->weights.rope);
  std::vector<std::byte> host(static_cast<std::size_t>(table.bytes()));
  make_rope_table(table.shape[0], table.shape[1], parts_->sizes.rope_base,
                  Tensor(host.data(), table.dtype, table.shape));
  ctx.device.copy_to_device(ctx.stream, table.data, host.data(), table.bytes());
  ctx.stream.synchronize();
}

}  // namespace tilefold
