#include "base/error.h"
#include "kernels/attention/decode_tiles.h"
#include "kernels/attention/hopper_tiles.h"
#include "kernels/attention/params.cuh"
#include "kernels/attention/portable.h"
#include "kernels/attention/tail.h"
#include "kernels/attention/tiled_backward.h"
#include "kernels/attention/tiled_forward.h"
#include "kernels/attention/tiled_tiles.h"

namespace tilefold::attention {
namespace {

using LaunchForward = void (*)(const Params&, const Partials&, CUstream_st*);
using LaunchBackward = void (*)(const Params&, const GradientParts&, CUstream_st*);

// The kernels of one element type.
struct Kernels {
  LaunchForward tiled[3], split[3], decode[3];  // padded width 64, 128, 256
  LaunchForward combine;
  void (*sums)(const Params&, CUstream_st*);
  LaunchBackward backward[3], add_parts;
};

template <class Element, int kWidth>
constexpr LaunchForward tiled_of() {
  constexpr int kSize = sizeof(Element);
  return launch_tiled_forward<Element, kWidth, forward_rows(kWidth * kSize, kSize, false)>;
}

template <class Element>
constexpr Kernels kKernels = {
    .tiled = {tiled_of<Element, 64>(), tiled_of<Element, 128>(), tiled_of<Element, 256>()},
    .split = {launch_tiled_forward<Element, 64, kTileRows>,
              launch_tiled_forward<Element, 128, kTileRows>,
              launch_tiled_forward<Element, 256, kTileRows>},
    .decode = {launch_decode<Element, 64>, launch_decode<Element, 128>,
               launch_decode<Element, 256>},
    .combine = launch_combine<Element>,
    .sums = launch_sums<Element>,
    .backward = {launch_tiled_backward<Element, 64>, launch_tiled_backward<Element, 128>,
                 launch_tiled_backward<Element, 256>},
    .add_parts = launch_add_parts<Element>,
};

const Kernels& kernels_of(DType dtype) {
  if (dtype == DType::f32) return kKernels<float>;
  return dtype == DType::bf16 ? kKernels<bf16> : kKernels<f16>;
}

int row_bytes(const ConstTensor& q) {
  return padded_width(q.shape[3]) * static_cast<int>(size_of(q.dtype));
}
int width_index(const ConstTensor& q) {
  const int width = padded_width(q.shape[3]);
  return width == 64 ? 0 : width == 128 ? 1 : 2;
}

Partials partials_of(const AttentionForward& args, std::int64_t parts) {
  const Shape& q = args.q.shape;
  Partials x{};
  x.parts = static_cast<int>(parts);
  x.rows = q[0] * q[2] * q[1];
  if (parts == 1) return x;
  x.o = reinterpret_cast<float*>(args.workspace.data());
  x.m = x.o + parts * x.rows * q[3];
  x.l = x.m + parts * x.rows;
  return x;
}

// After the sums in the workspace, at a multiple of 16 bytes.
GradientParts parts_of(const AttentionBackward& args, std::int64_t parts) {
  const Shape &q = args.q.shape, &k = args.k.shape;
  GradientParts x{};
  x.parts = static_cast<int>(parts);
  x.query_rows = q[0] * q[1] * q[2];
  x.key_rows = k[0] * k[1] * k[2];
  if (parts == 1) return x;
  x.dq = reinterpret_cast<float*>(args.workspace.data()) + (x.query_rows + 3) / 4 * 4;
  x.dk = x.dq + parts * x.query_rows * q[3];
  x.dv = x.dk + parts * x.key_rows * q[3];
  return x;
}

}  // namespace

void portable_forward(const AttentionForward& args, const AttentionChoice& choice,
                      CUstream_st* stream) {
  const Kernels& kernels = kernels_of(args.q.dtype);
  if (args.documents.cu_seqlens_q && choice.splits == 1) {  // else combine clears them
    clear_tail(args.o, args.documents.cu_seqlens_q, stream);
    clear_tail_constants(args.m, args.l, args.documents.cu_seqlens_q, stream);
  }
  const bool decodes = choice.strategy == AttentionStrategy::decode;
  const bool splits = choice.strategy == AttentionStrategy::split;
  const int bytes = row_bytes(args.q);
  const int rows = forward_rows(bytes, static_cast<int>(size_of(args.q.dtype)), splits);
  Params p = params_of(args, rows, forward_keys(bytes, rows));
  if (decodes)
    p.tiles_q =
        static_cast<int>((problem_of(args).max_seq_q * p.group + kDecodeRows - 1) / kDecodeRows);
  const Partials parts = partials_of(args, choice.splits);
  const auto& launch = decodes ? kernels.decode : splits ? kernels.split : kernels.tiled;
  launch[width_index(args.q)](p, parts, stream);
  if (parts.parts > 1) kernels.combine(p, parts, stream);
}

void portable_backward(const AttentionBackward& args, const AttentionChoice& choice,
                       CUstream_st* stream) {
  const Kernels& kernels = kernels_of(args.q.dtype);
  if (args.documents.cu_seqlens_q) {
    clear_tail(args.dq, args.documents.cu_seqlens_q, stream);
    clear_tail(args.dk, args.documents.cu_seqlens_k, stream);
    clear_tail(args.dv, args.documents.cu_seqlens_k, stream);
  }
  const int resident =
      backward_resident(row_bytes(args.q), static_cast<int>(size_of(args.q.dtype)));
  Params p = params_of(args, resident, resident);
  p.d_o = strided(args.d_o);
  p.dq = strided(args.dq);
  p.dk = strided(args.dk);
  p.dv = strided(args.dv);
  p.sums = reinterpret_cast<float*>(args.workspace.data());
  kernels.sums(p, stream);
  const GradientParts parts = parts_of(args, choice.splits);
  kernels.backward[width_index(args.q)](p, parts, stream);
  if (parts.parts > 1) kernels.add_parts(p, parts, stream);
}

}  // namespace tilefold::attention
