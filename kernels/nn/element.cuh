// What the kernels of this folder share: from a dtype to a type, elements as floats in registers,
// 16 bytes at a time, and sums over the threads of a row in a fixed order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/float_types.h"
#include "kernels/ptx/math.cuh"

namespace tilefold::nn {

// body(Type<T>{}) with T the element type of a floating dtype. f64 is the CPU's: the oracle.
template <class Body>
void for_cuda_dtype(const char* op, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::f16:
      return body(Type<f16>{});
    default:
      throw Error(str(op, ": dtype ", name_of(dtype),
                      " has no CUDA kernel; allowed: f32, bf16, f16 (device cpu takes f64)"));
  }
}

// body(Type<R>{}) with R what may stand beside elements T: T itself or float32.
template <class T, class Body>
void for_wider_dtype(DType dtype, Body&& body) {
  if (dtype == dtype_of<T>()) return body(Type<T>{});
  expect(dtype == DType::f32, "a dtype that is neither the model's nor float32");
  return body(Type<float>{});
}

// Elements of T in 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// Whether `pointer` (may be null) and rows of `stride` elements of T allow accesses of 16 bytes.
template <class T>
bool vector_rows(const void* pointer, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride % kVector<T> == 0;
}

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(bf16 x) { return ptx::widen(x); }
__device__ __forceinline__ float widened(f16 x) { return ptx::widen(x); }

template <class T>
__device__ __forceinline__ T narrowed(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    T y;
    y.bits = static_cast<std::uint16_t>(ptx::pack<T>(x, 0.0f));
    return y;
  }
}

// x as T can hold it.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return widened(narrowed<T>(x));
}

template <class T>
__device__ __forceinline__ float half_of(std::uint32_t word, int i) {
  T x;
  x.bits = static_cast<std::uint16_t>(i == 0 ? word : word >> 16);
  return widened(x);
}

// V elements as memory has them, in as few registers. REQUIRES: V is 1, or the address 16-byte
// aligned and V * sizeof(T) a multiple of 16.
template <class T, int V>
struct Packed {
  static constexpr int kWords = V == 1 ? 1 : V / kVector<T> * 4;
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const T* from) {
    if constexpr (V == 1) {
      if constexpr (std::is_same_v<T, float>) {
        words[0] = __float_as_uint(*from);
      } else {
        words[0] = from->bits;
      }
    } else {
      static_assert(V % kVector<T> == 0);
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = *(reinterpret_cast<const uint4*>(from) + i / 4);
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
    }
  }
  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[i]);
    } else {
      return half_of<T>(words[i / 2], i % 2);
    }
  }
};

// V elements at `from` as floats. REQUIRES: as Packed.
template <class T, int V>
__device__ __forceinline__ void load(const T* from, float (&to)[V]) {
  Packed<T, V> packed;
  packed.load(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = packed[i];
}

// As load, the other way, with one rounding.
template <class T, int V>
__device__ __forceinline__ void store(T* to, const float (&from)[V]) {
  if constexpr (V == 1) {
    *to = narrowed<T>(from[0]);
  } else {
    constexpr int kEach = kVector<T>;
    static_assert(V % kEach == 0);
#pragma unroll
    for (int i = 0; i < V; i += kEach) {
      std::uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (std::is_same_v<T, float>) {
          words[w] = __float_as_uint(from[i + w]);
        } else {
          words[w] = ptx::pack<T>(from[i + 2 * w], from[i + 2 * w + 1]);
        }
      }
      // One instruction: assigned, some kernels' four words became four stores.
      __stwb(reinterpret_cast<uint4*>(to + i), make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
}

// Between float32 numbers the exponential is the library's; beside 16-bit ones the fast one, whose
// error of 2^-21 is lost in the rounding.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  }
}

constexpr unsigned kWarp = 32;

// The sum over a warp, the same bits on every lane: each exchange adds the same two numbers.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Sums of two numbers over the `threads` threads (a multiple of 32) that share a row; the rows of a
// block follow each other. Every thread of the block takes part. shared: [warps of the block].
__device__ __forceinline__ float2 row_sums(float2 x, unsigned threads, float2* shared) {
  x.x = warp_sum(x.x);
  x.y = warp_sum(x.y);
  if (threads == kWarp) return x;
  __syncthreads();  // whoever read the last sums is done
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  const unsigned warps = threads / kWarp, first = threadIdx.x / threads * warps;
  x = shared[first];
  for (unsigned w = 1; w < warps; ++w) {
    x.x += shared[first + w].x;
    x.y += shared[first + w].y;
  }
  return x;
}

}  // namespace tilefold::nn
