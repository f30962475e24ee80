// k_cache[b, place[b seq + t]] = k[b, t]      v_cache likewise
#include <cstring>

#include "contract/cache.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

const std::byte* at(const ConstTensor& x, std::int64_t b, std::int64_t t, std::int64_t h) {
  const std::int64_t element = b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
  return static_cast<const std::byte*>(x.data) + element * size_of(x.dtype);
}

}  // namespace

void cache_append(Stream& stream, const CacheAppend& args) {
  const std::int64_t seq = args.k.shape[1], heads = args.k.shape[2], d = args.k.shape[3];
  const std::int64_t cache = args.k_cache.shape[1], row = d * size_of(args.k.dtype);
  const auto append = [&](const ConstTensor& from, const Tensor& to, std::int64_t token,
                          std::int64_t place) {
    const std::int64_t b = token / seq, t = token % seq;
    auto* data = static_cast<std::byte*>(to.data) + (b * cache + place) * heads * row;
    for (std::int64_t h = 0; h < heads; ++h)
      std::memcpy(data + h * row, at(from, b, t, h), static_cast<std::size_t>(row));
  };
  for_blocks(pool_of(stream), args.k.shape[0] * seq, rows_per_block(heads * d),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t token = begin; token < end; ++token) {
                 const std::int64_t place = args.places.as<std::int32_t>()[token];
                 if (place < 0 || place >= cache) continue;
                 append(args.k, args.k_cache, token, place);
                 append(args.v, args.v_cache, token, place);
               }
             });
}

}  // namespace tilefold::cpu
