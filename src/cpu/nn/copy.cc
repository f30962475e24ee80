// dst = src, converted between floating dtypes; integers keep theirs.
#include <cstring>

#include "contract/pointwise.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

// Offset of row `row` of a tensor: a row is everything along the last dimension.
std::int64_t row_offset(const Shape& shape, const Shape& strides, std::int64_t row) {
  std::int64_t offset = 0;
  for (int i = shape.rank - 2; i >= 0; --i) {
    offset += row % shape[i] * strides[i];
    row /= shape[i];
  }
  return offset;
}

// row(src offset, dst offset, count, src stride, dst stride) over all rows.
template <class Row>
void for_rows(ThreadPool& pool, const Copy& args, Row&& row) {
  const Shape& shape = args.src.shape;
  const std::int64_t width = shape.rank > 0 ? shape[shape.rank - 1] : 1;
  const std::int64_t numel = args.src.numel();
  if (numel == 0) return;
  if (args.src.dense() && args.dst.dense()) {
    constexpr std::int64_t kBlock = 65536;  // elements
    for_blocks(pool, numel, kBlock,
               [&](std::int64_t begin, std::int64_t end) { row(begin, begin, end - begin, 1, 1); });
    return;
  }
  const std::int64_t src_stride = shape.rank > 0 ? args.src.strides[shape.rank - 1] : 1;
  const std::int64_t dst_stride = shape.rank > 0 ? args.dst.strides[shape.rank - 1] : 1;
  for_blocks(pool, numel / width, rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      row(row_offset(shape, args.src.strides, r), row_offset(shape, args.dst.strides, r), width,
          src_stride, dst_stride);
  });
}

template <class From, class To>
void convert(ThreadPool& pool, const Copy& args) {
  using Via = accumulator_t<From>;  // holds every value of From
  for_rows(pool, args,
           [&](std::int64_t from, std::int64_t to, std::int64_t count, std::int64_t src_stride,
               std::int64_t dst_stride) {
             const From* src = args.src.as<From>() + from;
             To* dst = args.dst.as<To>() + to;
#pragma omp simd
             for (std::int64_t c = 0; c < count; ++c)
               dst[c * dst_stride] = static_cast<To>(static_cast<Via>(src[c * src_stride]));
           });
}

void copy_same(ThreadPool& pool, const Copy& args) {
  const std::int64_t size = size_of(args.src.dtype);
  for_rows(pool, args,
           [&](std::int64_t from, std::int64_t to, std::int64_t count, std::int64_t src_stride,
               std::int64_t dst_stride) {
             const char* src = static_cast<const char*>(args.src.data) + from * size;
             char* dst = static_cast<char*>(args.dst.data) + to * size;
             if (src_stride == 1 && dst_stride == 1) {
               std::memcpy(dst, src, static_cast<std::size_t>(count * size));
               return;
             }
             for (std::int64_t c = 0; c < count; ++c)
               std::memcpy(dst + c * dst_stride * size, src + c * src_stride * size,
                           static_cast<std::size_t>(size));
           });
}

}  // namespace

void copy(Stream& stream, const Copy& args) {
  ThreadPool& pool = pool_of(stream);
  if (args.src.dtype == args.dst.dtype) return copy_same(pool, args);
  for_float_dtype(args.src.dtype, [&]<class From>(Type<From>) {
    for_float_dtype(args.dst.dtype, [&]<class To>(Type<To>) { convert<From, To>(pool, args); });
  });
}

}  // namespace tilefold::cpu
