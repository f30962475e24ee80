// sum = sum over all tensors and elements of grad^2, in float64: block sums, then those in order.
//
// g = c grad / n      norm = sqrt(grad_square_sum) / n      c = clip > 0 ? min(1, clip / norm) : 1
// m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
// w -= lr (m / bias_correction1 / (sqrt(v / bias_correction2) + eps) + decay w)
// Nothing is written when the norm is not finite or n is 0.
//
// The list of tensors is a parameter of the kernel: one launch for all of them (for each 512).
#include <algorithm>
#include <array>

#include "contract/optimizer.h"
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 256;
// Tensors of a launch: kernel parameters may have 32764 bytes (CUDA 12.1 and later, sm_70 and
// later).
constexpr int kTensors = 512;

// Tensors in blocks; blocks of a tensor follow each other.
struct Blocks {
  std::int64_t elements[kTensors];
  std::uint32_t first[kTensors];  // block of the launch
  int count;

  // The tensor of a block, by bisection.
  __device__ int tensor_of(std::uint32_t block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= block)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

struct SquareSumParams {
  Blocks blocks;
  const void* grads[kTensors];
  bool wide[kTensors];  // float64
};

template <class A>
__device__ double square_sum(const A* grad, std::int64_t count) {
  double sum = 0;
  if constexpr (std::is_same_v<A, float>) {
    if (reinterpret_cast<std::uintptr_t>(grad) % 16 == 0) {
      const std::int64_t whole = count / 4;
#pragma unroll 4
      for (std::int64_t i = threadIdx.x; i < whole; i += kThreads) {
        float g[4];
        load<float, 4>(grad + 4 * i, g);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += static_cast<double>(g[j]) * static_cast<double>(g[j]);
      }
      grad += 4 * whole;
      count -= 4 * whole;
    }
  }
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const double g = static_cast<double>(grad[i]);
    sum += g * g;
  }
  return sum;
}

// sums[block]
__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const __grid_constant__ SquareSumParams p, double* sums) {
  __shared__ double shared[kThreads / kWarp];
  const int tensor = p.blocks.tensor_of(blockIdx.x);
  const std::int64_t begin = std::int64_t{blockIdx.x - p.blocks.first[tensor]} * kGradSquareBlock;
  const std::int64_t rest = p.blocks.elements[tensor] - begin;
  const std::int64_t count = rest < kGradSquareBlock ? rest : kGradSquareBlock;
  double sum = p.wide[tensor]
                   ? square_sum(static_cast<const double*>(p.grads[tensor]) + begin, count)
                   : square_sum(static_cast<const float*>(p.grads[tensor]) + begin, count);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < kThreads / kWarp; ++w) sum += shared[w];
  sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024)
    add_sums_kernel(const double* sums, std::int64_t blocks, double* total) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += 1024) sum += sums[i];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < 32; ++w) sum += shared[w];
  *total = sum;
}

// Elements of a block of the update: four vectors a thread.
constexpr std::int64_t kUpdateBlock = 16 * kThreads;

struct Settings {
  double beta1, beta2, eps, weight_decay, clip;
};

struct AdamWParams {
  Blocks blocks;
  float* master[kTensors];
  void* weight[kTensors];  // 16-bit, or null
  const float* grad[kTensors];
  float *m[kTensors], *v[kTensors];
  bool decay[kTensors], half[kTensors];  // half: weight is f16, not bf16
  bool aligned[kTensors];                // all of them to 16 bytes
  Settings settings;
  const StepState* state;
  const double* grad_square_sum;
};
static_assert(sizeof(AdamWParams) <= 32764 && sizeof(SquareSumParams) <= 32764);

// What every element needs, worked out once a block.
struct Constants {
  float scale;  // c / n
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float inverse_correction1, inverse_correction2, learning_rate;
  bool writes;
};

__device__ Constants constants_of(const Settings& s, const StepState& state, double square_sum) {
  const double n = state.target_tokens, norm = sqrt(square_sum) / n;
  const double clip = s.clip > 0 && norm > s.clip ? s.clip / norm : 1.0;
  return {.scale = static_cast<float>(clip / n),
          .beta1 = static_cast<float>(s.beta1),
          .one_minus_beta1 = static_cast<float>(1 - s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .one_minus_beta2 = static_cast<float>(1 - s.beta2),
          .eps = static_cast<float>(s.eps),
          .inverse_correction1 = static_cast<float>(1 / state.bias_correction1),
          .inverse_correction2 = static_cast<float>(1 / state.bias_correction2),
          .learning_rate = static_cast<float>(state.learning_rate),
          .writes = n != 0 && isfinite(norm)};
}

template <class T, int V>
__device__ void update(const AdamWParams& p, const Constants& k, int tensor, std::int64_t i,
                       float decay) {
  float w[V], g[V], m[V], v[V];
  load<float, V>(p.master[tensor] + i, w);
  load<float, V>(p.grad[tensor] + i, g);
  load<float, V>(p.m[tensor] + i, m);
  load<float, V>(p.v[tensor] + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    g[j] *= k.scale;
    m[j] = k.beta1 * m[j] + k.one_minus_beta1 * g[j];
    v[j] = k.beta2 * v[j] + k.one_minus_beta2 * g[j] * g[j];
    const float direction =
        m[j] * k.inverse_correction1 / (sqrtf(v[j] * k.inverse_correction2) + k.eps);
    w[j] -= k.learning_rate * (direction + decay * w[j]);
  }
  store<float, V>(p.master[tensor] + i, w);
  store<float, V>(p.m[tensor] + i, m);
  store<float, V>(p.v[tensor] + i, v);
  if constexpr (!std::is_same_v<T, float>) {
    T* weight = static_cast<T*>(p.weight[tensor]) + i;
    if constexpr (V == 1) {
      *weight = narrowed<T>(w[0]);
    } else {
      *reinterpret_cast<uint2*>(weight) =
          make_uint2(ptx::pack<T>(w[0], w[1]), ptx::pack<T>(w[2], w[3]));
    }
  }
}

template <class T>
__device__ void update_block(const AdamWParams& p, const Constants& k, int tensor,
                             std::int64_t begin) {
  const float decay = p.decay[tensor] ? static_cast<float>(p.settings.weight_decay) : 0.0f;
  const std::int64_t elements = p.blocks.elements[tensor];
  const bool aligned = p.aligned[tensor];
#pragma unroll 4
  for (int i = 0; i < 4; ++i) {
    const std::int64_t at = begin + 4 * (i * kThreads + static_cast<int>(threadIdx.x));
    if (aligned && at + 4 <= elements) {
      update<T, 4>(p, k, tensor, at, decay);
    } else {
      for (std::int64_t one = at; one < at + 4 && one < elements; ++one)
        update<T, 1>(p, k, tensor, one, decay);
    }
  }
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamWParams p) {
  __shared__ Constants shared;
  if (threadIdx.x == 0) shared = constants_of(p.settings, *p.state, *p.grad_square_sum);
  __syncthreads();
  const Constants k = shared;
  if (!k.writes) return;
  const int tensor = p.blocks.tensor_of(blockIdx.x);
  const std::int64_t begin = std::int64_t{blockIdx.x - p.blocks.first[tensor]} * kUpdateBlock;
  if (p.weight[tensor] == nullptr)
    update_block<float>(p, k, tensor, begin);
  else if (p.half[tensor])
    update_block<f16>(p, k, tensor, begin);
  else
    update_block<bf16>(p, k, tensor, begin);
}

// Appends a tensor; returns its number in the launch. `used`: blocks so far.
int append(Blocks& blocks, std::int64_t elements, std::int64_t block, std::int64_t& used) {
  const int at = blocks.count++;
  blocks.elements[at] = elements;
  blocks.first[at] = static_cast<std::uint32_t>(used);
  used += ceil_div(elements, block);
  return at;
}

}  // namespace

void grad_square_sum(const Queue& queue, const GradSquareSum& args) {
  auto* sums = reinterpret_cast<double*>(args.workspace.data());
  std::int64_t done = 0;
  for (std::size_t first = 0; first < args.grads.size(); first += kTensors) {
    SquareSumParams p{};
    std::int64_t used = 0;
    for (const ConstTensor& grad :
         args.grads.subspan(first, std::min<std::size_t>(kTensors, args.grads.size() - first))) {
      if (grad.numel() == 0) continue;
      const int at = append(p.blocks, grad.numel(), kGradSquareBlock, used);
      p.grads[at] = grad.data;
      p.wide[at] = grad.dtype == DType::f64;
    }
    if (used > 0)
      tile::launch(square_sum_kernel, {.blocks = used, .threads = kThreads}, queue.stream, p,
                   sums + done);
    done += used;
  }
  tile::launch(add_sums_kernel, {.blocks = 1, .threads = 1024}, queue.stream,
               static_cast<const double*>(sums), done, args.sum.as<double>());
}

void adamw(const Queue& queue, const AdamW& args) {
  for (const AdamWParameter& p : args.parameters)
    for_cuda_dtype("adamw", p.master.dtype, []<class T>(Type<T>) {});
  for (std::size_t first = 0; first < args.parameters.size(); first += kTensors) {
    AdamWParams p{};
    p.settings = {args.beta1, args.beta2, args.eps, args.weight_decay, args.clip};
    p.state = args.state;
    p.grad_square_sum = args.grad_square_sum.as<double>();
    std::int64_t used = 0;
    for (const AdamWParameter& x : args.parameters.subspan(
             first, std::min<std::size_t>(kTensors, args.parameters.size() - first))) {
      if (x.master.numel() == 0) continue;
      const int at = append(p.blocks, x.master.numel(), kUpdateBlock, used);
      p.master[at] = x.master.as<float>();
      p.weight[at] = x.weight ? x.weight.data : nullptr;
      p.grad[at] = x.grad.as<float>();
      p.m[at] = x.m.as<float>();
      p.v[at] = x.v.as<float>();
      p.decay[at] = x.decay;
      p.half[at] = x.weight && x.weight.dtype == DType::f16;
      p.aligned[at] = true;
      for (const void* data : {x.master.data, x.m.data, x.v.data, x.weight.data})
        p.aligned[at] = p.aligned[at] && vector_rows<float>(data, 0);
      p.aligned[at] = p.aligned[at] && vector_rows<float>(x.grad.data, 0);
    }
    if (used > 0)
      tile::launch(adamw_kernel, {.blocks = used, .threads = kThreads}, queue.stream, p);
  }
}

}  // namespace tilefold::nn
