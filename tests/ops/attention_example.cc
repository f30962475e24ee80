// The README's example of attention as a component; tests/tools/readme_example_test.py holds the
// two together. What stands between the marks is quoted there.

// [example begins]
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "ops/ops.h"

using namespace tilefold;

int main() {
  // Your own arrays: q, k and v side by side in one projection [batch, seq, 3, heads, d].
  const std::int64_t batch = 2, seq = 1000, heads = 4, d = 64;
  std::vector<float> qkv(batch * seq * 3 * heads * d), grad(qkv.size());
  std::vector<float> o(batch * seq * heads * d), d_o(o.size(), 1.0f);
  std::vector<float> m(batch * heads * seq), l(m.size());
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i % 37) / 37 - 0.5f;

  // Views: a pointer, a shape and strides in elements; nothing is copied.
  const Shape shape{batch, seq, heads, d}, strides{seq * 3 * heads * d, 3 * heads * d, d, 1};
  const auto part = [&](std::vector<float>& x, int i) {
    return Tensor(x.data() + i * heads * d, DType::f32, shape, strides);
  };
  const std::unique_ptr<Device> device = open_device("cpu");
  const std::unique_ptr<Stream> stream = device->make_stream();
  const Context ctx{*device, *stream};

  AttentionForward forward;
  forward.q = part(qkv, 0), forward.k = part(qkv, 1), forward.v = part(qkv, 2);
  forward.o = Tensor(o.data(), DType::f32, shape);
  forward.m = Tensor(m.data(), DType::f32, {batch, heads, seq});
  forward.l = Tensor(l.data(), DType::f32, {batch, heads, seq});
  forward.options.causal = true;

  AttentionBackward backward;  // needs q, k, v, o and two numbers a row: nothing of seq * seq
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.o = forward.o, backward.m = forward.m, backward.l = forward.l;
  backward.d_o = ConstTensor(d_o.data(), DType::f32, shape);
  backward.dq = part(grad, 0), backward.dk = part(grad, 1), backward.dv = part(grad, 2);
  backward.options = forward.options;

  // Workspace is asked for, not allocated behind your back.
  const std::int64_t bytes =
      std::max(ops::attention_workspace(problem_of(forward), device->info()),
               ops::attention_workspace(problem_of(backward), device->info()));
  const std::unique_ptr<Memory> memory = device->allocate(bytes);
  forward.workspace = backward.workspace = {memory->data(), static_cast<std::size_t>(bytes)};

  ops::attention_forward(ctx, forward);
  ops::attention_backward(ctx, backward);
  stream->synchronize();
  std::printf("o[0] = %g, dq[last] = %g, %lld bytes of workspace\n", o[0],
              backward.dq.as<float>()[(seq - 1) * 3 * heads * d], static_cast<long long>(bytes));
}
// [example ends]
