#include "contract/attention.h"

#include <limits>

#include "tests/catch.h"

using namespace tilefold;

namespace {

// The rule of the header, key by key.
bool visible(const AttentionOptions& o, std::int64_t i, std::int64_t j, std::int64_t seq_q,
             std::int64_t seq_k) {
  const std::int64_t diagonal = i + seq_k - seq_q;
  if (o.window_left >= 0 && j < diagonal - o.window_left) return false;
  if (o.causal && j > diagonal) return false;
  return o.window_right < 0 || j <= diagonal + o.window_right;
}

AttentionOptions mask(bool causal, std::int64_t left, std::int64_t right) {
  AttentionOptions o;
  o.causal = causal;
  o.window_left = left;
  o.window_right = right;
  return o;
}

}  // namespace

TEST_CASE("visible keys and their number follow the rule key by key") {
  for (auto [seq_q, seq_k] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                              {2, 5},
                              {5, 2},
                              {1, 9},
                              {9, 1},
                              {7, 7},
                              {12, 8},
                              {0, 4},
                              {4, 0}})
    for (bool causal : {false, true})
      for (std::int64_t left : {-1, 0, 1, 3, 20})
        for (std::int64_t right : {-1, 0, 2, 20}) {
          AttentionProblem p;
          p.batch = 2, p.heads = 3;
          p.seq_q = seq_q, p.seq_k = seq_k;
          p.options = mask(causal, left, right);
          std::int64_t pairs = 0;
          for (std::int64_t i = 0; i < seq_q; ++i) {
            const KeyRange keys = visible_keys(p.options, i, seq_q, seq_k);
            CHECK(keys.begin <= keys.end);
            for (std::int64_t j = 0; j < seq_k; ++j) {
              const bool inside = keys.begin <= j && j < keys.end;
              CHECK(inside == visible(p.options, i, j, seq_q, seq_k));
              pairs += inside;
            }
          }
          CHECK(visible_pairs(p) == 6.0 * static_cast<double>(pairs));
        }
}

TEST_CASE("published counts: bottom-right causal and inclusive windows") {
  const auto seen = [](const AttentionOptions& o, std::int64_t i, std::int64_t sq,
                       std::int64_t sk) {
    const KeyRange keys = visible_keys(o, i, sq, sk);
    return keys.end - keys.begin;
  };
  const AttentionOptions causal = mask(true, -1, -1);
  CHECK(seen(causal, 0, 2, 5) == 4);
  CHECK(seen(causal, 1, 2, 5) == 5);
  const std::int64_t five_two[] = {0, 0, 0, 1, 2};
  for (std::int64_t i = 0; i < 5; ++i) CHECK(seen(causal, i, 5, 2) == five_two[i]);
  CHECK(seen(causal, 0, 1, 37) == 37);
  const std::int64_t window[] = {1, 2, 3, 3, 3, 3, 3, 3};
  for (std::int64_t i = 0; i < 8; ++i) CHECK(seen(mask(false, 2, 0), i, 8, 8) == window[i]);
  CHECK(visible_keys(mask(false, 2, 0), 5, 8, 8).begin == 3);
  CHECK(visible_keys(mask(false, 2, 0), 5, 8, 8).end == 6);
}

TEST_CASE("limits near the largest integer do not wrap") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const KeyRange keys = visible_keys(mask(false, most, most), 3, 8, 8);
  CHECK(keys.begin == 0);
  CHECK(keys.end == 8);
}

TEST_CASE("cost: causal is half, backward two and a half, naive passes over the scores") {
  AttentionProblem p;
  p.seq_q = p.seq_k = p.max_seq_q = p.max_seq_k = 4096;
  p.heads = p.kv_heads = 16;
  p.dtype = DType::bf16;
  const Cost full = attention_cost(p, AttentionStrategy::tiled);
  CHECK(full.flops == 4.0 * 64 * 16 * 4096 * 4096);
  CHECK(full.bytes == 4.0 * 16 * 4096 * 64 * 2 + 2.0 * 16 * 4096 * 4);
  const Cost naive = attention_cost(p, AttentionStrategy::naive);
  CHECK(naive.bytes - full.bytes == 4.0 * 512 * 1024 * 1024);  // 512 MiB of scores
  p.options.causal = true;
  CHECK(attention_cost(p, AttentionStrategy::tiled).flops == full.flops * 4097 / 8192);
  p.options.causal = false;
  p.backward = true;
  CHECK(attention_cost(p, AttentionStrategy::tiled).flops == 2.5 * full.flops);
  CHECK(attention_cost(p, AttentionStrategy::naive).bytes -
            attention_cost(p, AttentionStrategy::tiled).bytes ==
        5.0 * 512 * 1024 * 1024);
  p.documents = 8;
  CHECK(attention_cost(p, AttentionStrategy::tiled).flops == 2.5 * full.flops / 8);
}

TEST_CASE("the problem of a call") {
  AttentionBackward args;
  args.q = ConstTensor(nullptr, DType::f16, {1, 10, 6, 32});
  args.k = ConstTensor(nullptr, DType::f16, {1, 14, 2, 32});
  AttentionProblem p = problem_of(args);
  CHECK(p.backward);
  CHECK(p.seq_q == 10);
  CHECK(p.max_seq_k == 14);
  CHECK(p.kv_heads == 2);
  CHECK(p.documents == 0);
  const std::int32_t offsets[] = {0, 4, 10};
  args.documents = {ConstTensor(offsets, DType::i32, {3}), ConstTensor(offsets, DType::i32, {3}), 6,
                    6};
  p = problem_of(args);
  CHECK(p.documents == 2);
  CHECK(p.max_seq_q == 6);
}

TEST_CASE("strategy names are read back, others refused with the allowed ones") {
  for (auto s : {AttentionStrategy::automatic, AttentionStrategy::naive, AttentionStrategy::tiled,
                 AttentionStrategy::split, AttentionStrategy::decode})
    CHECK(parse_attention_strategy(name_of(s)) == s);
  CHECK_THROWS_AS(parse_attention_strategy("flash"), UsageError);
}
