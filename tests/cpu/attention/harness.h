// What attention tests share: a problem as data, runs of it through the op's door, the float64
// oracle and the plain implementation of the same dtype, and the comparison of rule 10:
//
//   |got - exact| <= 2 max |plain - exact| + 4 u32 size + 2 u |exact|
//
// element by element; u is the dtype's unit roundoff, u32 float32's, size the formula on absolute
// values (reference::Terms::absolute).
//
// Every array stands in memory full of NaN, in gaps between rows and around it; outputs and
// workspace start as NaN.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "contract/attention.h"
#include "device/device.h"
#include "tests/cpu/attention/poisoned_array.h"

namespace tilefold::test {

struct Problem {
  std::int64_t batch = 1, seq_q = 1, seq_k = 1, heads = 1, kv_heads = 1, d = 8;
  DType dtype = DType::f32;
  AttentionOptions options;
  std::vector<std::int64_t> cu_q, cu_k;  // packed documents; empty for none
  DType cu_dtype = DType::i32;
  Layout layout = Layout::dense;  // of q; the other arrays take the following ones in turn
  double dropout = 0;
  bool keep_probabilities = false;  // naive alone
  StepState state;

  Shape q_shape() const { return {batch, seq_q, heads, d}; }
  Shape k_shape() const { return {batch, seq_k, kv_heads, d}; }
  std::string text() const;
};

// Row-major values, already rounded to the problem's dtype.
struct Inputs {
  std::vector<double> q, k, v, d_o;
};

// Row-major, widened. Gradients are empty without backward.
struct Outputs {
  std::vector<double> o, m, l, dq, dk, dv;
  std::vector<double> lse() const;
};

// Independent normal values.
Inputs normal_inputs(const Problem& problem, std::uint64_t seed, double factor = 1);
// Rounds in place.
void round_inputs(Inputs& inputs, DType dtype);

// Whether the table offers this strategy for the problem, forward or backward.
bool offered(Context ctx, const Problem& problem, bool backward);

// Through the door; checks that every output element was written and nothing around. Where the
// strategy does not offer a backward, the automatic choice runs it.
enum class Passes : std::uint8_t { forward, both };
Outputs run(Context ctx, const Problem& problem, const Inputs& inputs,
            Passes passes = Passes::both);

// What rule 10 compares with.
struct Expected {
  Outputs exact, plain, size;
  std::array<double, 4> plain_error{};  // largest of o, dq, dk, dv
};
Expected expect_outputs(const Problem& problem, const Inputs& inputs, Passes passes = Passes::both);

// Empty when `got` holds, else one line per output that does not.
std::string disagreement(const Problem& problem, const Outputs& got, const Expected& expected);

// A device with this many threads and its stream.
struct Cpu {
  explicit Cpu(int threads);
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Context context() { return {*device, *stream}; }
};

}  // namespace tilefold::test
