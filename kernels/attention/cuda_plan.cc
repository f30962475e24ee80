// What the CUDA kernels can run and need: in every build, with or without CUDA.
#include <algorithm>

#include "base/error.h"
#include "kernels/attention/decode_tiles.h"
#include "kernels/attention/hopper.h"
#include "kernels/attention/hopper_tiles.h"
#include "kernels/attention/hopper_workspace.h"
#include "kernels/attention/naive.h"
#include "kernels/attention/naive_layout.h"
#include "kernels/attention/plain.h"
#include "kernels/attention/portable.h"
#include "kernels/attention/tiled_tiles.h"

namespace tilefold::attention {

constexpr std::int64_t kLongest = 1ll << 30;  // positions are 32-bit in the kernels

std::string hopper_refusal(const AttentionProblem& p, int compute_capability) {
  if (compute_capability != 90)
    return str("the device has compute capability ", compute_capability / 10, ".",
               compute_capability % 10, "; needed: 9.0");
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return str("dtype is ", name_of(p.dtype), "; allowed: bf16, f16");
  if (p.d % 8 != 0) return str("d is ", p.d, "; allowed: multiples of 8");
  if (p.d > 256) return str("d is ", p.d, "; allowed: up to 256");
  if (p.options.dropout.p != 0) return str("dropout is ", p.options.dropout.p, "; allowed: 0");
  if (p.seq_q > kLongest || p.seq_k > kLongest)
    return str("seq_q is ", p.seq_q, ", seq_k ", p.seq_k, "; allowed: up to 2^30");
  return {};
}

std::string hopper_split_refusal(const AttentionProblem& p) {
  if (p.backward) return "it is a forward kernel";
  if (p.d > 128) return str("d is ", p.d, "; allowed: up to 128");
  if (p.documents > 0) return "documents are packed";
  const std::int64_t blocks = product({p.batch, p.heads, (p.seq_q + 63) / 64, kSplitMost});
  if (blocks >= 1ll << 31) return str(blocks, " blocks; allowed: up to 2^31 - 1");
  return {};
}

std::int64_t hopper_workspace(const AttentionProblem& p) {
  return p.backward ? BackwardWorkspace(p).bytes : kForwardWorkspace;
}

std::string plain_refusal(const AttentionProblem& p) {
  if (p.seq_q > kLongest || p.seq_k > kLongest)
    return str("seq_q ", p.seq_q, ", seq_k ", p.seq_k, "; allowed: up to 2^30 positions each");
  return {};
}

std::int64_t plain_workspace(const AttentionProblem& p) {
  return p.backward ? product({p.batch, p.heads, p.seq_q, 4}) : 0;
}

static std::string portable_refusal(const AttentionProblem& p, const DeviceInfo& device,
                                    std::int64_t shared_bytes) {
  if (device.compute_capability < 80)
    return str("the device has compute capability ", device.compute_capability / 10, ".",
               device.compute_capability % 10, "; needed: 8.0 or above");
  if (shared_bytes > device.shared_bytes)
    return str("d is ", p.d, " in ", name_of(p.dtype), ", which takes ", shared_bytes,
               " bytes of shared memory; the device has ", device.shared_bytes, " a block");
  return {};
}

static int row_bytes(const AttentionProblem& p) {
  return padded_width(p.d) * static_cast<int>(size_of(p.dtype));
}

std::string portable_refusal(const AttentionProblem& p, const DeviceInfo& device) {
  const int bytes = row_bytes(p);
  return portable_refusal(p, device,
                          p.backward
                              ? backward_shared(bytes, static_cast<int>(size_of(p.dtype)))
                              : std::max(forward_shared(bytes, kTileRows), decode_shared(bytes)));
}

std::string naive_refusal(const AttentionProblem& p, const DeviceInfo& device) {
  return portable_refusal(p, device,
                          naive_shared(row_bytes(p), static_cast<int>(size_of(p.dtype))));
}

std::int64_t partials_bytes(std::int64_t rows, std::int64_t d) { return product({rows, d + 2, 4}); }

std::int64_t gradient_parts_bytes(std::int64_t rows, std::int64_t d) {
  return product({rows, d, 4}) + 16;  // they begin at a multiple of 16
}

std::int64_t portable_workspace(const AttentionProblem& p, std::int64_t parts) {
  const std::int64_t rows = product({p.batch, p.heads, p.seq_q});
  const std::int64_t key_rows = product({p.batch, p.kv_heads, p.seq_k});
  if (p.backward)
    return product({rows, 4}) +
           (parts > 1 ? gradient_parts_bytes(product({parts, rows + 2 * key_rows}), p.d) : 0);
  return parts > 1 ? partials_bytes(product({parts, rows}), p.d) : 0;
}

std::int64_t naive_workspace(const AttentionProblem& p) {
  return naive_fuses(p) ? 0 : NaiveLayout(p).bytes;
}

}  // namespace tilefold::attention
