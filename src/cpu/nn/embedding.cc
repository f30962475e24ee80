// x_t = dropout(E[token_t] + P[position_t])
// dE[v] += sum_{t: token_t = v} dropout'(dx_t)      dP[i] += sum_{t: position_t = i} dropout'(dx_t)
//
// Backward gives each block a range of columns and all tokens, in order: no two blocks write one
// element, and every sum has one order.
#include "contract/embedding.h"

#include "cpu/nn/dropout_scale.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

std::int64_t checked(const ConstTensor& ids, std::int64_t t, std::int64_t limit, const char* what) {
  const std::int64_t id = ids.as<std::int32_t>()[t];
  if (id < 0 || id >= limit)
    throw Error(str("embedding: ", what, "[", t, "] is ", id, "; allowed: 0 to ", limit - 1));
  return id;
}

// x = from + place, times scale; place and scale may be null.
template <class T, class R>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void embed(
    std::int64_t count, const T* from, const T* place, const accumulator_t<T>* scale, R* x) {
  using A = accumulator_t<T>;
#pragma omp simd
  for (std::int64_t c = 0; c < count; ++c) {
    A value = load(from[c]);
    if (place != nullptr) value += load(place[c]);
    if (scale != nullptr) value *= scale[c];
    store(x[c], value);
  }
}

template <class T, class R>
void forward_rows(const EmbeddingForward& args, std::int64_t begin, std::int64_t end) {
  using A = accumulator_t<T>;
  const std::int64_t width = args.table.shape[1];
  A scale[kDropoutChunk];
  for (std::int64_t t = begin; t < end; ++t) {
    const T* from =
        args.table.as<T>() + checked(args.tokens, t, args.table.shape[0], "tokens") * width;
    R* x = args.x.as<R>() + t * width;
    const T* place = nullptr;
    if (args.position_table)
      place = args.position_table.as<T>() +
              checked(args.positions, t, args.position_table.shape[0], "positions") * width;
    if (args.dropout.p == 0) {
      embed<T, R>(width, from, place, nullptr, x);
      continue;
    }
    for (std::int64_t start = 0; start < width; start += kDropoutChunk) {
      const std::int64_t count = std::min(width - start, kDropoutChunk);
      dropout_scale(args.dropout, t, width, start, count, scale);
      embed<T, R>(count, from + start, place ? place + start : nullptr, scale, x + start);
    }
  }
}

// A cache line of float32 gradient.
constexpr std::int64_t kColumns = 16;

template <class R>
void backward_columns(const EmbeddingBackward& args, std::int64_t begin, std::int64_t end) {
  using A = accumulator_t<R>;
  const std::int64_t tokens = args.dx.shape[0], width = args.dx.shape[1], count = end - begin;
  for (std::int64_t t = 0; t < tokens; ++t) {
    A value[kColumns];
    const R* dx = args.dx.as<R>() + t * width + begin;
    if (args.dropout.p > 0) {
      dropout_scale(args.dropout, t, width, begin, count, value);
      for (std::int64_t c = 0; c < count; ++c) value[c] *= load(dx[c]);
    } else {
      for (std::int64_t c = 0; c < count; ++c) value[c] = load(dx[c]);
    }
    A* row = args.dtable.as<A>() + begin +
             checked(args.tokens, t, args.dtable.shape[0], "tokens") * width;
    for (std::int64_t c = 0; c < count; ++c) row[c] += value[c];
    if (!args.dposition_table) continue;
    A* place = args.dposition_table.as<A>() + begin +
               checked(args.positions, t, args.dposition_table.shape[0], "positions") * width;
    for (std::int64_t c = 0; c < count; ++c) place[c] += value[c];
  }
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  const std::int64_t tokens = args.x.shape[0], width = args.x.shape[1];
  for_float_dtype(args.table.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.x.dtype, [&]<class R>(Type<R>) {
      for_blocks(
          pool_of(stream), tokens, rows_per_block(width),
          [&](std::int64_t begin, std::int64_t end) { forward_rows<T, R>(args, begin, end); });
    });
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  for_float_dtype(args.dx.dtype, [&]<class R>(Type<R>) {
    for_blocks(
        pool_of(stream), args.dx.shape[1], kColumns,
        [&](std::int64_t begin, std::int64_t end) { backward_columns<R>(args, begin, end); });
  });
}

}  // namespace tilefold::cpu
