// Every element becomes `value`.
#include "contract/pointwise.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

constexpr std::int64_t kBlock = 65536;  // elements

template <class T>
void fill_all(ThreadPool& pool, const Tensor& x, T value) {
  for_blocks(pool, x.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    std::fill(x.as<T>() + begin, x.as<T>() + end, value);
  });
}

}  // namespace

void fill(Stream& stream, const Fill& args) {
  ThreadPool& pool = pool_of(stream);
  switch (args.x.dtype) {
    case DType::f32:
      return fill_all(pool, args.x, static_cast<float>(args.value));
    case DType::bf16:
      return fill_all(pool, args.x, bf16(static_cast<float>(args.value)));
    case DType::f16:
      return fill_all(pool, args.x, f16(static_cast<float>(args.value)));
    case DType::f64:
      return fill_all(pool, args.x, args.value);
    case DType::i32:
      return fill_all(pool, args.x, static_cast<std::int32_t>(args.value));
    case DType::i64:
      return fill_all(pool, args.x, static_cast<std::int64_t>(args.value));
    case DType::u16:
      return fill_all(pool, args.x, static_cast<std::uint16_t>(args.value));
    case DType::u8:
      return fill_all(pool, args.x, static_cast<std::uint8_t>(args.value));
  }
}

}  // namespace tilefold::cpu
