// The inner loops of attention on one panel: 32 query rows side by side in vector lanes, against a
// tile of keys. Everything stands transposed, so that no loop reduces across lanes and the operands
// that come from memory (K, V) are read as they lie:
//
//   S^T [keys][32]  = K [keys][d] . (scale Q)^T [d][32]        products(), rows of a broadcast
//   P^T = exp(S^T - m), l, rescale factor                      fold(), every line is one key
//   O^T [d][32]     = rescale * O^T + V^T [d][keys] . P^T      accumulate(), columns of a broadcast
//
// One translation unit per instruction set instantiates tile_kernels_inl.h and fills this table;
// the best that the machine has is picked once, at run time. Each output element of a product is one
// chain of multiply-adds over its depth in ascending order, and a score a fixed sum of such chains
// (scores() below), so its bits depend neither on the blocking nor on its neighbours: a score is the
// same number forward, backward and in every tile size.
#pragma once

#include <cstdint>

namespace tilefold::cpu {

// Query rows of a panel: two AVX-512 registers of float. Layouts are the same for every instruction
// set.
inline constexpr std::int64_t kPanel = 32;

template <class Real>
struct TileKernels {
  const char* name;  // "avx512", ...

  // c[r][n] (+)= sum_s sum_k a[s * a_segment + r * a_row + k] * b[(s * depth + k) * 32 + n]
  //   r < rows, s < segments, k < depth, n < columns (16 or 32); c at c + r * c_row.
  void (*products)(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Real* a,
                   std::int64_t a_row, std::int64_t segments, std::int64_t a_segment, const Real* b,
                   Real* c, std::int64_t c_row, bool add);

  // c[r][n] = factor[n] * c[r][n] + sum_k a[k * a_row + r] * b[k * 32 + n]
  //   r < rows, k < depth, n < 32; c dense [rows][32].
  void (*accumulate)(std::int64_t rows, std::int64_t depth, const Real* a, std::int64_t a_row,
                     const Real* b, Real* c, const Real* factor);

  // s = cap * tanh(s / cap), in place. s [keys][32]
  void (*soften)(Real* s, std::int64_t keys, Real cap);

  // s[j][n] = -inf where j < first[n] or j >= last[n]. s [keys][32], first, last [32]
  void (*hide)(Real* s, std::int64_t keys, const std::int32_t* first, const std::int32_t* last);

  // The softmax recurrence over one tile. s [keys][32] becomes exp(s - m_new); for each lane
  //   m_new = max(m, max_j s_j)   factor = exp(m - m_new)   l = factor l + sum_j exp(s_j - m_new)
  // with factor and exp 0 where m_new is -inf (no key seen yet). Key j is added to the (j % 4)th of
  // four partial sums, so hidden keys behind a lane's last one do not change the bits of its l.
  void (*fold)(Real* s, std::int64_t keys, Real* m, Real* l, Real* factor);

  // Backward of one tile. In: s [keys][32] scores after the softcap, dp [keys][32] = V dO^T,
  // keep [keys][32] dropout factors or null. Out:
  //   s  = keep p,  p = exp(s - m) inverse_l          dp = p (keep dp - delta) (1 - (s / cap)^2)
  // Hidden scores (-inf) give zeros; so does inverse_l = 0 (a row that sees no key). cap 0: none.
  void (*differentiate)(Real* s, Real* dp, std::int64_t keys, const Real* m, const Real* inverse_l,
                        const Real* delta, const Real* keep, Real cap);

  // s *= keep, [keys][32] each.
  void (*drop)(Real* s, const Real* keep, std::int64_t keys);

  // y[c][n] = factor * x[n * x_row + c] for n < rows, 0 for rows <= n < 32.  y [d][32]
  void (*to_panel)(const Real* x, std::int64_t x_row, std::int64_t rows, std::int64_t d,
                   Real factor, Real* y);
  // y[n * y_row + c] = x[c][n] / divisor[n] (0 where divisor is 0) for n < rows.
  // x [d][32], divisor [32]
  void (*from_panel)(const Real* x, std::int64_t d, const Real* divisor, std::int64_t rows, Real* y,
                     std::int64_t y_row);
};

// Columns of d that a score sums in one chain.
constexpr std::int64_t kScorePart = 32;

// s [rows][32] = a [rows][d] . b [d][32], the product of scores: d in parts of kScorePart columns
// that are added up. In one chain of 128 roundings a score loses 1e-6 and its p as much, twice what
// a plain implementation's does.
template <class Real>
void scores(const TileKernels<Real>& kernels, std::int64_t rows, std::int64_t d, const Real* a,
            std::int64_t a_row, const Real* b, Real* s) {
  for (std::int64_t c = 0; c < d; c += kScorePart)
    kernels.products(rows, kPanel, d - c < kScorePart ? d - c : kScorePart, a + c, a_row, 1, 0,
                     b + c * kPanel, s, kPanel, c > 0);
}

// Conversion of 16-bit storage, count elements.
struct StorageKernels {
  void (*widen_bf16)(const std::uint16_t* x, float* y, std::int64_t count);
  void (*widen_f16)(const std::uint16_t* x, float* y, std::int64_t count);
};

// Dropout's random words (contract/dropout.h) for 32 query rows at a time:
//   words[w][n] = word w of attention_dropout_words() with group = j / 4 and site = site + head *
//   65536
struct RandomKernels {
  void (*words)(std::uint64_t key, std::uint32_t group, const std::uint32_t* positions,
                std::uint32_t site, const std::uint32_t* samples, std::uint32_t (*words)[kPanel]);
};

// The tables of one instruction set; a machine that lacks it must not call through them.
namespace baseline {
extern const TileKernels<float> kFloat;
extern const TileKernels<double> kDouble;
extern const StorageKernels kStorage;
extern const RandomKernels kRandom;
}  // namespace baseline
namespace avx2 {
extern const TileKernels<float> kFloat;
extern const TileKernels<double> kDouble;
extern const StorageKernels kStorage;
extern const RandomKernels kRandom;
}  // namespace avx2
namespace avx512 {
extern const TileKernels<float> kFloat;
extern const TileKernels<double> kDouble;
extern const StorageKernels kStorage;
extern const RandomKernels kRandom;
}  // namespace avx512

// The best tables for this machine.
template <class Real>
const TileKernels<Real>& tile_kernels();
const StorageKernels& storage_kernels();
const RandomKernels& random_kernels();

}  // namespace tilefold::cpu
