// fill: every element becomes `value`.      copy: dst = src, converted between floating dtypes.
// cache_append: k_cache[b, place[b seq + t]] = k[b, t], v_cache likewise.
#include "contract/pointwise.h"
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 256;

std::int64_t blocks_of(std::int64_t count) { return ceil_div(count, kThreads); }

template <class Element>
__global__ void fill_kernel(Element* x, std::int64_t count, Element value) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = value;
}

template <class Element>
void fill_all(const Queue& queue, const Tensor& x, Element value) {
  tile::launch(fill_kernel<Element>, {.blocks = blocks_of(x.numel()), .threads = kThreads},
               queue.stream, static_cast<Element*>(x.data), x.numel(), value);
}

// Where element i, in row-major order, of a strided array lies.
struct Strided {
  std::int64_t dims[kMaxRank], src[kMaxRank],
      dst[kMaxRank];  // the first of them 1 for a lower rank
};

Strided strided(const Copy& args) {
  Strided s{.dims = {1, 1, 1, 1}, .src = {}, .dst = {}};
  const int rank = args.src.shape.rank;
  for (int i = 0; i < rank; ++i) {
    const int to = kMaxRank - rank + i;
    s.dims[to] = args.src.shape[i];
    s.src[to] = args.src.strides[i];
    s.dst[to] = args.dst.strides[i];
  }
  return s;
}

// Via double where both could hold it; float32 lies between all others exactly.
template <class From, class To>
__device__ To converted(const From& x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<From, double>) {
    return narrowed<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, double>) {
    return static_cast<double>(widened(x));
  } else {
    return narrowed<To>(widened(x));
  }
}

template <class From, class To>
__global__ void copy_kernel(const From* src, To* dst, std::int64_t count, const Strided s) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  std::int64_t from = 0, to = 0;
#pragma unroll
  for (int dim = kMaxRank - 1; dim >= 0; --dim) {
    const std::int64_t at = i % s.dims[dim];
    i /= s.dims[dim];
    from += at * s.src[dim];
    to += at * s.dst[dim];
  }
  dst[to] = converted<From, To>(src[from]);
}

template <class From, class To>
__global__ void convert_kernel(const From* src, To* dst, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) dst[i] = converted<From, To>(src[i]);
}

template <class From, class To>
void copy_as(const Queue& queue, const Copy& args) {
  const auto* src = static_cast<const From*>(args.src.data);
  auto* dst = static_cast<To*>(args.dst.data);
  const std::int64_t count = args.src.numel();
  const tile::Grid grid{.blocks = blocks_of(count), .threads = kThreads};
  if (args.src.dense() && args.dst.dense())
    tile::launch(convert_kernel<From, To>, grid, queue.stream, src, dst, count);
  else
    tile::launch(copy_kernel<From, To>, grid, queue.stream, src, dst, count, strided(args));
}

// Elements of one dtype, by their size.
void copy_same(const Queue& queue, const Copy& args) {
  const std::int64_t size = size_of(args.src.dtype);
  if (args.src.dense() && args.dst.dense()) {
    tile::check(cudaMemcpyAsync(args.dst.data, args.src.data,
                                static_cast<std::size_t>(args.src.numel() * size),
                                cudaMemcpyDeviceToDevice, queue.stream));
  } else if (size == 8) {
    copy_as<std::uint64_t, std::uint64_t>(queue, args);
  } else if (size == 4) {
    copy_as<std::uint32_t, std::uint32_t>(queue, args);
  } else if (size == 2) {
    copy_as<std::uint16_t, std::uint16_t>(queue, args);
  } else {
    copy_as<std::uint8_t, std::uint8_t>(queue, args);
  }
}

template <class From>
void copy_from(const Queue& queue, const Copy& args) {
  switch (args.dst.dtype) {
    case DType::f32:
      return copy_as<From, float>(queue, args);
    case DType::bf16:
      return copy_as<From, bf16>(queue, args);
    case DType::f16:
      return copy_as<From, f16>(queue, args);
    default:
      return copy_as<From, double>(queue, args);
  }
}

// Rows of a tensor [batch, seq, heads, d] whose last stride is 1.
template <class Element>
struct Heads {
  const Element* data;
  std::int64_t batch, row, head;  // strides
  __device__ Element at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    return data[b * batch + t * row + h * head + c];
  }
};

template <class Element>
Heads<Element> heads_of(const ConstTensor& x) {
  return {static_cast<const Element*>(x.data), x.strides[0], x.strides[1], x.strides[2]};
}

// A thread an element of k and the same of v.
template <class Element>
__global__ void cache_kernel(Heads<Element> k, Heads<Element> v, const std::int32_t* places,
                             Element* k_cache, Element* v_cache, std::int64_t count,
                             std::int64_t seq, std::int64_t heads, std::int64_t d,
                             std::int64_t cache) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t c = i % d, h = i / d % heads, token = i / d / heads;
  const std::int64_t place = places[token], b = token / seq, t = token % seq;
  if (place < 0 || place >= cache) return;
  const std::int64_t to = ((b * cache + place) * heads + h) * d + c;
  k_cache[to] = k.at(b, t, h, c);
  v_cache[to] = v.at(b, t, h, c);
}

template <class Element>
void append(const Queue& queue, const CacheAppend& args) {
  const Shape& k = args.k.shape;
  tile::launch(cache_kernel<Element>, {.blocks = blocks_of(args.k.numel()), .threads = kThreads},
               queue.stream, heads_of<Element>(args.k), heads_of<Element>(args.v),
               args.places.as<std::int32_t>(), static_cast<Element*>(args.k_cache.data),
               static_cast<Element*>(args.v_cache.data), args.k.numel(), k[1], k[2], k[3],
               args.k_cache.shape[1]);
}

}  // namespace

void cache_append(const Queue& queue, const CacheAppend& args) {
  const std::int64_t size = size_of(args.k.dtype);
  size == 8   ? append<std::uint64_t>(queue, args)
  : size == 4 ? append<std::uint32_t>(queue, args)
              : append<std::uint16_t>(queue, args);
}

void fill(const Queue& queue, const Fill& args) {
  if (args.value == 0) {  // all dtypes: zero bytes
    tile::check(
        cudaMemsetAsync(args.x.data, 0, static_cast<std::size_t>(args.x.bytes()), queue.stream));
    return;
  }
  switch (args.x.dtype) {
    case DType::f32:
      return fill_all(queue, args.x, static_cast<float>(args.value));
    case DType::bf16:
      return fill_all(queue, args.x, bf16(static_cast<float>(args.value)));
    case DType::f16:
      return fill_all(queue, args.x, f16(static_cast<float>(args.value)));
    case DType::f64:
      return fill_all(queue, args.x, args.value);
    case DType::i32:
      return fill_all(queue, args.x, static_cast<std::int32_t>(args.value));
    case DType::i64:
      return fill_all(queue, args.x, static_cast<std::int64_t>(args.value));
    case DType::u16:
      return fill_all(queue, args.x, static_cast<std::uint16_t>(args.value));
    case DType::u8:
      return fill_all(queue, args.x, static_cast<std::uint8_t>(args.value));
  }
}

void copy(const Queue& queue, const Copy& args) {
  if (args.src.dtype == args.dst.dtype) return copy_same(queue, args);
  switch (args.src.dtype) {
    case DType::f32:
      return copy_from<float>(queue, args);
    case DType::bf16:
      return copy_from<bf16>(queue, args);
    case DType::f16:
      return copy_from<f16>(queue, args);
    default:
      return copy_from<double>(queue, args);
  }
}

}  // namespace tilefold::nn
