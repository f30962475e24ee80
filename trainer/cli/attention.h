// `tilefold attention {run, explain, bench}`: the attention component on files, its table of
// choices, and its speed. Callbacks throw Error or UsageError, which main turns into the exit
// status.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tilefold {

void add_attention_commands(CLI::App& app);

// IN.h5: q [batch, seq_q, heads, d], k and v [batch, seq_k, kv_heads, d], optionally do as q (then
// backward runs too), all float32, rounded to dtype on load; optionally cu_seqlens_q and
// cu_seqlens_k (then batch is 1). Root attributes, each optional: causal (0), window_left,
// window_right (-1), scale (1/sqrt(d)), softcap (0), deterministic (1). Anything else is an Error.
// OUT.h5: o as q, m, l, lse [batch, heads, seq_q], with do also dq as q, dk and dv as k; computed
// in dtype, widened to float32. Attributes strategy (what ran forward), device, dtype.
struct AttentionRunSettings {
  std::string in, out;
  std::string device = "auto";
  std::string dtype = "f32";
  std::string strategy = "auto";
  int threads = 0;  // CPU: 0 for all allowed cores
};
void attention_run(const AttentionRunSettings& settings);

// Every combination of the lists is measured: one row forward, one backward.
struct AttentionBenchSettings {
  std::vector<std::int64_t> seq = {1024, 2048, 4096};
  std::vector<std::int64_t> d = {64, 128};
  std::vector<int> causal = {0, 1};
  std::vector<std::string> strategy = {"auto"};
  std::vector<std::string> dtype = {"f32"};
  std::int64_t seq_k = 0;                           // 0: seq
  std::int64_t batch = 1, heads = 4, kv_heads = 0;  // kv_heads 0: heads
  std::vector<std::int64_t> window = {-1, -1};
  std::string device = "auto";
  int threads = 0;
  double seconds = 0.5;  // spent on each row at least
  bool forward_only = false;
  bool csv = false;
};
void attention_bench(const AttentionBenchSettings& settings);

}  // namespace tilefold
