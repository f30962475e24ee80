// Attention by its definition: plain loops, one head at a time, the probabilities materialized. The
// oracle of every attention test (on float64 views), the plain low-precision implementation that
// tolerances compare with (on 16-bit and float32 views), and the `naive` strategy.
//
//   forward    t = scores, m, l (accumulator type)   P = round(p)            [seq_q, seq_k] in T
//              O = P V
//   backward   p = exp(t - m) / l                    P = round(mask p)       [seq_q, seq_k] in T
//              dS = round(p (mask dP - D) slope)                             [seq_q, seq_k] in T
//              dQ = scale dS K    dK = scale dS^T Q    dV = P^T dO
//
// T is the dtype of q (float32, bfloat16, float16, float64); sums are float32, float64 for float64.
// round() is to T, and nothing for float32 and float64. Every option of contract/attention.h. No
// state; calls with different (batch, kv head) write different elements and may run in parallel,
// each with its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contract/attention.h"

namespace tilefold::cpu::reference {

// What a test's tolerance scales with: the same formulas with every term's absolute value (for dS,
// D added), the probabilities unchanged. Backward then needs the o of an absolute forward.
enum class Terms : std::uint8_t { as_they_are, absolute };

// Bytes of scratch of one call, aligned to 8: grows with max_seq_q * max_seq_k.
std::int64_t attention_scratch(const AttentionProblem& problem);

// The query heads of one kv head of one batch element.
void attention_forward(const AttentionForward& args, std::int64_t batch, std::int64_t kv_head,
                       std::span<std::byte> scratch, Terms terms = Terms::as_they_are);
void attention_backward(const AttentionBackward& args, std::int64_t batch, std::int64_t kv_head,
                        std::span<std::byte> scratch, Terms terms = Terms::as_they_are);

// The whole problem, with scratch of its own.
void attention_forward(const AttentionForward& args, Terms terms = Terms::as_they_are);
void attention_backward(const AttentionBackward& args, Terms terms = Terms::as_they_are);

}  // namespace tilefold::cpu::reference
