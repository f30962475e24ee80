#include "kernels/attention/geometry.cuh"
#include "kernels/attention/tail.h"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {
namespace {

constexpr int kThreads = 256, kBlocks = 264;

struct TailParams {
  const void* offsets;
  bool wide;
  int documents;
  std::int64_t seq, heads, width;  // width in 16-bit units
  std::int64_t row, head;          // strides in 16-bit units
};

__device__ std::int64_t tail_begin(const TailParams& p) {
  return offset_at(p.offsets, p.wide, p.documents);
}

__global__ void clear_rows(std::uint16_t* data, TailParams p) {
  const std::int64_t begin = tail_begin(p), count = (p.seq - begin) * p.heads * p.width;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(kThreads) * kBlocks) {
    const std::int64_t x = i % p.width, h = i / p.width % p.heads, r = i / p.width / p.heads;
    data[(begin + r) * p.row + h * p.head + x] = 0;
  }
}

__global__ void clear_constants(float* m, float* l, TailParams p) {
  const std::int64_t begin = tail_begin(p), count = (p.seq - begin) * p.heads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(kThreads) * kBlocks) {
    const std::int64_t at = i % p.heads * p.seq + begin + i / p.heads;
    m[at] = tile::negative_infinity();
    l[at] = 0;
  }
}

TailParams tail_params(const ConstTensor& offsets) {
  return {.offsets = offsets.data,
          .wide = offsets.dtype == DType::i64,
          .documents = static_cast<int>(offsets.shape[0] - 1),
          .seq = 0,
          .heads = 0,
          .width = 0,
          .row = 0,
          .head = 0};
}

}  // namespace

void clear_tail(const Tensor& tensor, const ConstTensor& offsets, CUstream_st* stream) {
  TailParams p = tail_params(offsets);
  const std::int64_t units = size_of(tensor.dtype) / 2;
  p.seq = tensor.shape[1];
  p.heads = tensor.shape[2];
  p.width = tensor.shape[3] * units;
  p.row = tensor.strides[1] * units;
  p.head = tensor.strides[2] * units;
  tile::launch(clear_rows, {kBlocks, kThreads}, stream, static_cast<std::uint16_t*>(tensor.data),
               p);
}

void clear_tail_constants(const Tensor& m, const Tensor& l, const ConstTensor& offsets,
                          CUstream_st* stream) {
  TailParams p = tail_params(offsets);
  p.seq = m.shape[2];
  p.heads = m.shape[1];
  tile::launch(clear_constants, {kBlocks, kThreads}, stream, m.as<float>(), l.as<float>(), p);
}

}  // namespace tilefold::attention
