// The table: what it picks, and workspaces that a plan for the largest shape can rely on.
#include "kernels/attention/select.h"

#include <random>

#include "cpu/reference/attention.h"
#include "device/device.h"
#include "kernels/attention/cpu_scratch.h"
#include "tests/catch.h"

using namespace tilefold;

namespace {

AttentionProblem problem(std::int64_t batch, std::int64_t heads, std::int64_t seq_q,
                         std::int64_t seq_k) {
  AttentionProblem x;
  x.batch = batch, x.heads = heads, x.kv_heads = heads;
  x.seq_q = x.max_seq_q = seq_q, x.seq_k = x.max_seq_k = seq_k;
  return x;
}

DeviceInfo cpu_of(int processors) {
  DeviceInfo info;
  info.processors = processors;
  return info;
}

}  // namespace

TEST_CASE("the pick follows the shape, and no number of threads changes it") {
  for (int processors : {1, 2, 64}) {
    const DeviceInfo cpu = cpu_of(processors);
    const auto pick = [&](const AttentionProblem& x) { return select_attention(x, cpu); };
    CHECK(pick(problem(1, 8, 1, 4096)).strategy == AttentionStrategy::decode);
    CHECK(pick(problem(1, 8, 4, 4096)).strategy == AttentionStrategy::decode);
    CHECK(pick(problem(1, 8, 5, 4096)).strategy == AttentionStrategy::split);
    CHECK(pick(problem(1, 1, 128, 4096)).splits == 16);
    CHECK(pick(problem(1, 1, 1024, 1024)).strategy == AttentionStrategy::split);
    CHECK(pick(problem(1, 1, 1024, 1024)).splits == 2);
    CHECK(pick(problem(1, 1, 1152, 1024)).strategy == AttentionStrategy::tiled);
    CHECK(pick(problem(1, 8, 64, 511)).strategy == AttentionStrategy::tiled);
    CHECK(pick(problem(12, 4, 64, 64)).strategy == AttentionStrategy::tiled);
    CHECK(pick(problem(1, 1, 4096, 4096)).tile_q == 256);
    CHECK(pick(problem(1, 1, 2048, 2048)).tile_q == 128);
  }
}

TEST_CASE("a strategy that is asked for is picked; tiled is the backward of split and decode") {
  for (auto strategy : {AttentionStrategy::naive, AttentionStrategy::tiled,
                        AttentionStrategy::split, AttentionStrategy::decode}) {
    AttentionProblem x = problem(2, 4, 300, 300);
    x.options.strategy = strategy;
    CHECK(select_attention(x, cpu_of(2)).strategy == strategy);
    x.backward = true;
    CHECK(select_attention(x, cpu_of(2)).strategy == (strategy == AttentionStrategy::naive
                                                          ? AttentionStrategy::naive
                                                          : AttentionStrategy::tiled));
  }
}

TEST_CASE("the workspace of a shape covers every shape that is in no size larger") {
  std::mt19937 random(1);
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  for (const DeviceInfo& device : {cpu_of(2), describe_device("h200")})
    for (auto strategy :
         {AttentionStrategy::automatic, AttentionStrategy::naive, AttentionStrategy::tiled,
          AttentionStrategy::split, AttentionStrategy::decode})
      for (int draw = 0; draw < 4000; ++draw) {
        const bool backward = draw % 2 == 0;
        const std::int64_t heads = up_to(3);
        AttentionProblem x = problem(up_to(20), heads, up_to(up_to(5000)), up_to(up_to(9000)));
        x.options.strategy = strategy, x.backward = backward, x.d = up_to(256);
        AttentionProblem less = problem(up_to(x.batch), heads, up_to(x.seq_q), up_to(x.seq_k));
        less.options.strategy = strategy, less.backward = backward, less.d = x.d;
        INFO(name_of(strategy) << (backward ? " backward" : "") << " " << x.batch << " " << x.seq_q
                               << "x" << x.seq_k << " and " << less.batch << " " << less.seq_q
                               << "x" << less.seq_k);
        REQUIRE(select_attention(less, device).workspace_bytes <=
                select_attention(x, device).workspace_bytes);
      }
}

TEST_CASE("only naive needs memory that grows with the square of the length") {
  for (bool backward : {false, true}) {
    AttentionProblem a = problem(1, 4, 8192, 8192), b = problem(1, 4, 65536, 65536);
    a.backward = b.backward = backward;
    const auto bytes = [](const AttentionProblem& x) {
      return select_attention(x, cpu_of(2)).workspace_bytes;
    };
    CHECK(bytes(b) <= 8 * bytes(a));
    a.options.strategy = b.options.strategy = AttentionStrategy::naive;
    CHECK(bytes(b) > 60 * bytes(a));
    CHECK(cpu_scratch::naive_bytes(a) >= cpu::reference::attention_scratch(a));
  }
}

TEST_CASE("shapes beyond every memory are refused, not wrapped to small ones") {
  const std::int64_t n = std::int64_t{1} << 32;
  for (auto strategy : {AttentionStrategy::automatic, AttentionStrategy::naive,
                        AttentionStrategy::split, AttentionStrategy::decode}) {
    AttentionProblem x = problem(n, 4, n, n);
    x.options.strategy = strategy;
    CHECK_THROWS_AS(select_attention(x, cpu_of(2)), UsageError);
  }
  AttentionProblem x = problem(1, 1, n, n);  // its scores take 2^66 bytes
  x.options.strategy = AttentionStrategy::naive;
  CHECK_THROWS_AS(select_attention(x, cpu_of(2)), UsageError);
}

TEST_CASE("the table prints itself, with the pick marked") {
  const std::string text = explain_attention(problem(1, 8, 1, 4096), cpu_of(2));
  for (const char* part : {"* decode", "  split", "  tiled", "  naive", "pick: decode"})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("the table of a GPU") {
  const DeviceInfo h200 = describe_device("h200");
  const auto on_gpu = [](std::int64_t batch, std::int64_t heads, std::int64_t seq_q,
                         std::int64_t seq_k) {
    AttentionProblem x = problem(batch, heads, seq_q, seq_k);
    x.dtype = DType::bf16;
    return x;
  };
  AttentionProblem x = on_gpu(1, 8, 1, 1 << 20);
  AttentionChoice choice = select_attention(x, h200);
  CHECK(choice.strategy == AttentionStrategy::decode);
  CHECK(choice.splits > 1);

  x = on_gpu(4, 16, 4096, 4096);
  choice = select_attention(x, h200);
  CHECK(choice.strategy == AttentionStrategy::tiled);
  CHECK(choice.kernel == AttentionKernel::hopper);
  x.options.dropout.p = 0.1f;
  CHECK(select_attention(x, h200).kernel == AttentionKernel::portable);
  x.options.dropout.p = 0, x.backward = true, x.d = 200;
  CHECK(select_attention(x, h200).kernel == AttentionKernel::hopper);
  x.d = 100;
  CHECK(select_attention(x, h200).kernel == AttentionKernel::portable);

  // Few query tiles: a cluster's blocks share the keys of one.
  x = on_gpu(1, 4, 1024, 1024);
  choice = select_attention(x, h200);
  CHECK(choice.strategy == AttentionStrategy::split);
  CHECK(choice.kernel == AttentionKernel::hopper);
  CHECK(choice.splits == 2);
  CHECK(choice.tile_q == 64);
  x.options.dropout.p = 0.1f;  // which the Hopper rows do not take
  CHECK(select_attention(x, h200).kernel == AttentionKernel::portable);
  CHECK(select_attention(x, h200).strategy == AttentionStrategy::split);
  x.backward = true;
  CHECK(select_attention(x, h200).strategy == AttentionStrategy::split);
  CHECK(select_attention(x, h200).workspace_bytes >= 2 * 3 * 4 * 1024 * x.d * 4);
  x.options.dropout.p = 0;
  CHECK(select_attention(x, h200).strategy == AttentionStrategy::tiled);
  // Beside the Hopper rows few shapes are cut; longer ones have the memory for them.
  x.d = 128;
  choice = select_attention(x, h200);
  CHECK(choice.strategy == AttentionStrategy::split);
  CHECK(choice.splits == 4);
  x.seq_q = x.seq_k = x.max_seq_q = x.max_seq_k = 4096;
  CHECK(select_attention(x, h200).strategy == AttentionStrategy::tiled);
  CHECK(select_attention(x, h200).workspace_bytes >= choice.workspace_bytes);

  for (const bool backward : {false, true}) {
    x = on_gpu(1, 12, 1024, 1024);
    x.backward = backward, x.options.strategy = AttentionStrategy::naive;
    choice = select_attention(x, h200);
    CHECK(choice.kernel == AttentionKernel::naive);
    CHECK(choice.workspace_bytes >= 12 * 1024 * 1024 * 2);
  }
  x = on_gpu(1, 8, 1, 4096);
  const std::string text = explain_attention(x, h200);
  for (const char* part : {"* decode", "  split", "  hopper", "  naive", "pick: decode",
                           "O in registers: 4 parts of 16 x 64 float32, 16 KiB"})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("the accumulator of a pick, explained") {
  struct Case {
    std::int64_t heads, seq, d;
    const char* says;
  };
  const Case cases[] = {{4, 4096, 64, "O in registers: 128 x 64 float32, 32 KiB"},
                        {4, 1024, 64, "O in registers: 2 parts of 64 x 64 float32, 32 KiB"},
                        {64, 4096, 64, "O in registers: 192 x 64 float32, 48 KiB"},
                        {64, 4096, 256, "O in registers: 128 x 256 float32, 128 KiB"}};
  for (const Case& c : cases) {
    AttentionProblem x = problem(1, c.heads, c.seq, c.seq);
    x.dtype = DType::bf16, x.d = c.d;
    const std::string text = explain_attention(x, describe_device("h200"));
    INFO(text);
    CHECK(text.find(c.says) != std::string::npos);
    x.backward = true;
    CHECK(explain_attention(x, describe_device("h200")).find("O in registers") ==
          std::string::npos);
  }
}
