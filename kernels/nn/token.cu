// One token: y = epilogue(rms_norm(x) W^T), y += x W^T (contract/token.h).
//
// A warp takes a row of W, or two that end in one place: a gate and its up, the two halves of a
// head's pair. Each warp has x and its norm to itself, in registers, so that nothing waits for a
// neighbour. What stands first in a warp's rows is loaded before the kernel that makes x has ended
// (ptx/grid_order.cuh): weights change under no kernel that lets the next start.
#include "contract/token.h"
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/ptx/grid_order.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kWarps = 4;     // of a block
constexpr int kResident = 6;  // blocks of a multiprocessor: more rows are taken in turns

// Where a row's sums go. A unit is a warp's rows: row(unit, i). held: what finish() needs besides
// the sums, fetched before the last kernel has ended where that does not write it (kHeldEarly).
// kKeep: vectors of a row that a lane has at a time; four are 1024 columns of 16 bits.
template <class T, class Y>
struct Store {
  static constexpr int kRows = 1, kKeep = 4;
  static constexpr bool kNormed = true, kHeldEarly = true;
  struct Held {};
  Y* y;  // [out]
  __device__ std::int64_t row(std::int64_t unit, int) const { return unit; }
  __device__ Held fetch(std::int64_t) const { return {}; }
  __device__ void finish(std::int64_t unit, const float (&z)[1], Held) const {
    y[unit] = narrowed<Y>(z[0]);
  }
};

template <class T, class R>
struct Add {
  static constexpr int kRows = 1, kKeep = 8;
  static constexpr bool kNormed = false, kHeldEarly = false;
  using Held = float;
  R* y;  // [out]
  __device__ std::int64_t row(std::int64_t unit, int) const { return unit; }
  __device__ Held fetch(std::int64_t unit) const { return widened(y[unit]); }
  __device__ void finish(std::int64_t unit, const float (&z)[1], Held held) const {
    y[unit] = narrowed<R>(held + rounded<T>(z[0]));
  }
};

template <class T>
struct Swiglu {
  static constexpr int kRows = 2, kKeep = 4;
  static constexpr bool kNormed = true, kHeldEarly = true;
  struct Held {};
  T* y;  // [ffn]
  std::int64_t ffn;
  __device__ std::int64_t row(std::int64_t unit, int i) const { return unit + i * ffn; }
  __device__ Held fetch(std::int64_t) const { return {}; }
  __device__ void finish(std::int64_t unit, const float (&z)[2], Held) const {
    const float g = rounded<T>(z[0]);
    y[unit] = narrowed<T>(g * sigmoid<T>(g) * rounded<T>(z[1]));
  }
};

template <class T>
struct Heads {
  static constexpr int kRows = 2, kKeep = 4;
  static constexpr bool kNormed = true, kHeldEarly = true;
  struct Held {
    std::int32_t place;
    float cosine, sine;
  };
  T *q, *k_cache, *v_cache;   // [heads, d], [cache, kv_heads, d]
  const std::int32_t* place;  // [1]
  const float* table;         // [context, d]
  std::int64_t context, cache;
  unsigned heads, kv_heads, half;  // half of d
  __device__ unsigned head_of(std::int64_t unit) const {
    return static_cast<unsigned>(unit) / half;
  }
  __device__ unsigned column_of(std::int64_t unit) const {
    return static_cast<unsigned>(unit) % half;
  }
  __device__ std::int64_t row(std::int64_t unit, int i) const {
    return head_of(unit) * 2 * half + column_of(unit) + static_cast<unsigned>(i) * half;
  }
  __device__ Held fetch(std::int64_t unit) const {
    const std::int32_t at = *place;
    if (head_of(unit) >= heads + kv_heads) return {at, 1, 0};
    constexpr int kNan = 0x7fc00000;
    if (at < 0 || at >= context) return {at, __int_as_float(kNan), __int_as_float(kNan)};
    const float* angle = table + std::int64_t{at} * 2 * half + column_of(unit);
    return {at, angle[0], angle[half]};
  }
  __device__ void finish(std::int64_t unit, const float (&z)[2], const Held& held) const {
    const float a = rounded<T>(z[0]), b = rounded<T>(z[1]);
    const unsigned head = head_of(unit);
    T* to = q + head * 2 * half;
    if (head >= heads) {
      if (held.place < 0 || held.place >= cache) return;
      to = (head < heads + kv_heads ? k_cache : v_cache) +
           (std::int64_t{held.place} * kv_heads + (head - heads) % kv_heads) * 2 * half;
    }
    to += column_of(unit);
    to[0] = narrowed<T>(a * held.cosine - b * held.sine);
    to[half] = narrowed<T>(a * held.sine + b * held.cosine);
  }
};

template <class T, class X>
struct Params {
  const X* x;       // [in]
  const T* norm;    // [in], or null
  const T* weight;  // [out, in]
  std::int64_t in, units;
  float eps;
};

// A lane's vectors of a row's next `left` columns: every 32nd.
template <class T, int V, int kCount>
struct Piece {
  Packed<T, V> vectors[kCount];
  __device__ __forceinline__ void load(const T* row, std::int64_t left) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int c = (i * static_cast<int>(kWarp) + lane) * V;
      if (c < left) {
        vectors[i].load(row + c);
      } else {
#pragma unroll
        for (std::uint32_t& word : vectors[i].words) word = 0;
      }
    }
  }
};

// x: T, or what the norm reads.
template <class T, class X, int V, class Ending>
__global__ void __launch_bounds__(kWarps* kWarp)
    token_kernel(const Params<T, X> p, const Ending ending) {
  constexpr int kRows = Ending::kRows, kCount = Ending::kKeep;
  constexpr std::int64_t kChunk = kCount * static_cast<int>(kWarp) * V;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (unit >= p.units) return;
  Piece<T, V, kCount> w[kRows], scale;
  const auto load_rows = [&](std::int64_t start) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      w[r].load(p.weight + ending.row(unit, r) * p.in + start, p.in - start);
  };
  load_rows(0);
  if constexpr (Ending::kNormed) scale.load(p.norm, p.in);
  typename Ending::Held held{};
  if constexpr (Ending::kHeldEarly) held = ending.fetch(unit);
  ptx::let_next_start();
  ptx::wait_for_last();
  if constexpr (!Ending::kHeldEarly) held = ending.fetch(unit);

  const bool whole = p.in <= kChunk;
  Piece<X, V, kCount> x;
  float rstd = 1;
  if constexpr (Ending::kNormed) {
    float square = 0;
    for (std::int64_t start = 0; start < p.in; start += kChunk) {
      x.load(p.x + start, p.in - start);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int j = 0; j < V; ++j) square += x.vectors[i][j] * x.vectors[i][j];
    }
    rstd = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(p.in) + p.eps);
  } else {
    x.load(p.x, p.in);
  }
  float n[kCount][V];  // what stands before the product
  const auto prepare = [&] {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int j = 0; j < V; ++j)
        n[i][j] = Ending::kNormed ? rounded<T>(x.vectors[i][j] * rstd * scale.vectors[i][j])
                                  : x.vectors[i][j];
  };
  if (whole) prepare();
  while (unit < p.units) {
    float z[kRows] = {};
    for (std::int64_t start = 0; start < p.in; start += kChunk) {
      if (start > 0) load_rows(start);
      if (!whole) {
        x.load(p.x + start, p.in - start);
        if constexpr (Ending::kNormed) scale.load(p.norm + start, p.in - start);
        prepare();
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int j = 0; j < V; ++j) z[r] = fmaf(w[r].vectors[i][j], n[i][j], z[r]);
    }
    const std::int64_t done = unit;
    const auto held_by_done = held;
    unit += step;
    if (unit < p.units) {
      load_rows(0);
      held = ending.fetch(unit);
    }
#pragma unroll
    for (float& sum : z) sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) ending.finish(done, z, held_by_done);
  }
}

template <class T, class X, class Ending>
void run(const Queue& queue, const Params<T, X>& p, const Ending& ending) {
  const bool wide =
      vector_rows<X>(p.x, p.in) && vector_rows<T>(p.weight, p.in) && vector_rows<T>(p.norm, p.in);
  const std::int64_t blocks = ceil_div(p.units, kWarps);
  const std::int64_t most = std::int64_t{kResident} * queue.device.processors;
  tile::launch(wide ? token_kernel<T, X, kVector<T>, Ending> : token_kernel<T, X, 1, Ending>,
               {.blocks = blocks < most ? blocks : most,
                .threads = kWarps * static_cast<int>(kWarp),
                .early = true},
               queue.stream, p, ending);
}

template <class T, class R>
void normed(const Queue& queue, const NormedLinear& args) {
  const std::int64_t out = args.weight.shape[0];
  Params<T, R> p{.x = args.x.as<R>(),
                 .norm = args.norm.as<T>(),
                 .weight = args.weight.as<T>(),
                 .in = args.weight.shape[1],
                 .units = out,
                 .eps = args.eps};
  if (args.epilogue == TokenEpilogue::none)
    return for_wider_dtype<T>(
        args.y.dtype, [&]<class Y>(Type<Y>) { run(queue, p, Store<T, Y>{.y = args.y.as<Y>()}); });
  p.units = out / 2;
  if (args.epilogue == TokenEpilogue::swiglu)
    return run(queue, p, Swiglu<T>{.y = args.y.as<T>(), .ffn = out / 2});
  const Shape& cache = args.k_cache.shape;
  require(out < std::int64_t{1} << 31, "normed_linear: weight has ", out,
          " rows; allowed with heads on a GPU: below 2^31");
  run(queue, p,
      Heads<T>{.q = args.y.as<T>(),
               .k_cache = args.k_cache.as<T>(),
               .v_cache = args.v_cache.as<T>(),
               .place = args.place.as<std::int32_t>(),
               .table = args.table.as<float>(),
               .context = args.table.shape[0],
               .cache = cache[1],
               .heads = static_cast<unsigned>(args.y.shape[1] / cache[3]),
               .kv_heads = static_cast<unsigned>(cache[2]),
               .half = static_cast<unsigned>(cache[3] / 2)});
}

}  // namespace

void normed_linear(const Queue& queue, const NormedLinear& args) {
  for_cuda_dtype("normed_linear", args.weight.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.x.dtype, [&]<class R>(Type<R>) { normed<T, R>(queue, args); });
  });
}

void linear_add(const Queue& queue, const LinearAdd& args) {
  for_cuda_dtype("linear_add", args.weight.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.y.dtype, [&]<class R>(Type<R>) {
      const Params<T, T> p{.x = args.x.as<T>(),
                           .norm = nullptr,
                           .weight = args.weight.as<T>(),
                           .in = args.weight.shape[1],
                           .units = args.weight.shape[0],
                           .eps = 0};
      run(queue, p, Add<T, R>{.y = args.y.as<R>()});
    });
  });
}

}  // namespace tilefold::nn
