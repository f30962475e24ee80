// (a, b) = (x[c], x[c + d/2])  ->  (a cos - b sin, a sin + b cos)      inverse: sin negated
// in place; cos and sin of the token's position from the table.
//
// A block takes a few tokens; a thread V neighbouring pairs of four heads, loaded before the first
// is turned. The table's row is shared by the token's heads and comes from the cache.
#include "contract/pointwise.h"
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 256, kEach = 4;

template <class T>
struct RopeParams {
  T* x;                                    // [batch, seq, heads, d]
  std::int64_t of_batch, of_seq, of_head;  // strides; lanes: vectors of half a head
  const std::int32_t* positions;           // [batch * seq]
  const float* table;                      // [context, d]
  std::int64_t context;
  unsigned items, seq, heads, lanes;  // items: tokens * heads * lanes
  int d;
  float sign;
};

// What a thread turns at a time: V pairs of one head.
template <class T, int V>
struct Pairs {
  T* x;                 // null: nothing
  const float* cosine;  // null: a position outside the table
  Packed<T, V> a, b;
};

template <class T, int V>
__device__ __forceinline__ Pairs<T, V> load_pairs(const RopeParams<T>& p, unsigned item) {
  Pairs<T, V> at;
  at.x = nullptr;
  if (item >= p.items) return at;
  const unsigned of_token = p.heads * p.lanes;
  const unsigned token = item / of_token, rest = item % of_token;
  const unsigned c = rest % p.lanes * V;
  at.x = p.x + token / p.seq * p.of_batch + token % p.seq * p.of_seq +
         static_cast<std::int64_t>(rest / p.lanes) * p.of_head + c;
  at.a.load(at.x);
  at.b.load(at.x + p.d / 2);
  const std::int64_t position = p.positions[token];
  at.cosine = position >= 0 && position < p.context ? p.table + position * p.d + c : nullptr;
  return at;
}

template <class T, int V>
__device__ __forceinline__ void turn(const RopeParams<T>& p, const Pairs<T, V>& at) {
  float a[V], b[V], cos[V] = {}, sin[V];
  if (at.cosine != nullptr) {
    load<float, V>(at.cosine, cos);
    load<float, V>(at.cosine + p.d / 2, sin);
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const float s = at.cosine != nullptr ? p.sign * sin[j] : __int_as_float(0x7fc00000);
    a[j] = at.a[j] * cos[j] - at.b[j] * s;
    b[j] = at.a[j] * s + at.b[j] * cos[j];
  }
  store<T, V>(at.x, a);
  store<T, V>(at.x + p.d / 2, b);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeParams<T> p) {
  const unsigned first = blockIdx.x * kEach * kThreads + threadIdx.x;
  Pairs<T, V> at[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) at[i] = load_pairs<T, V>(p, first + i * kThreads);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (at[i].x != nullptr) turn<T, V>(p, at[i]);
}

template <class T, int V>
void run(const Queue& queue, const Rope& args) {
  const Shape &shape = args.x.shape, &strides = args.x.strides;
  const std::int64_t items = args.x.numel() / 2 / V;
  require(items < std::int64_t{1} << 31, "rope: x has ", args.x.numel(),
          " elements; allowed on a GPU: below ", (std::int64_t{1} << 32) * V);
  RopeParams<T> p{.x = args.x.as<T>(),
                  .of_batch = strides[0],
                  .of_seq = strides[1],
                  .of_head = strides[2],
                  .positions = args.positions.as<std::int32_t>(),
                  .table = args.table.as<float>(),
                  .context = args.table.shape[0],
                  .items = static_cast<unsigned>(items),
                  .seq = static_cast<unsigned>(shape[1]),
                  .heads = static_cast<unsigned>(shape[2]),
                  .lanes = static_cast<unsigned>(shape[3] / 2 / V),
                  .d = static_cast<int>(shape[3]),
                  .sign = args.inverse ? -1.0f : 1.0f};
  tile::launch(rope_kernel<T, V>,
               {.blocks = ceil_div(items, kEach * kThreads), .threads = kThreads}, queue.stream, p);
}

}  // namespace

void rope(const Queue& queue, const Rope& args) {
  for_cuda_dtype("rope", args.x.dtype, [&]<class T>(Type<T>) {
    const std::int64_t half = args.x.shape[3] / 2;
    bool wide = half % kVector<T> == 0 && vector_rows<float>(args.table.data, half);
    for (int dim = 0; dim < 3; ++dim)
      wide = wide && (args.x.shape[dim] == 1 || vector_rows<T>(args.x.data, args.x.strides[dim]));
    wide = wide && vector_rows<T>(args.x.data, 0);
    wide ? run<T, kVector<T>>(queue, args) : run<T, 1>(queue, args);
  });
}

}  // namespace tilefold::nn
