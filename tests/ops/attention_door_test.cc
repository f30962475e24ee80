// What attention refuses, before anything runs and by name.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

// A right call on dense float32 arrays, to be spoilt by a test.
struct Call {
  explicit Call(Shape q_shape = {2, 3, 4, 8}, Shape k_shape = {2, 5, 2, 8}) {
    const auto array = [&](const Shape& shape, DType dtype = DType::f32) {
      memory.emplace_back(static_cast<std::size_t>(shape.numel()) + 1, 1.0);
      return Tensor(memory.back().data(), dtype, shape);
    };
    memory.reserve(16);
    const Shape rows{q_shape[0], q_shape[2], q_shape[1]};
    forward.q = array(q_shape), forward.k = array(k_shape), forward.v = array(k_shape);
    forward.o = array(q_shape), forward.m = array(rows), forward.l = array(rows);
    backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
    backward.o = forward.o, backward.m = forward.m, backward.l = forward.l;
    backward.d_o = array(q_shape), backward.dq = array(q_shape);
    backward.dk = array(k_shape), backward.dv = array(k_shape);
    workspace = cpu.device->allocate(1 << 20);
    forward.workspace = backward.workspace = {workspace->data(), std::size_t{1} << 20};
  }
  void run_forward() { ops::attention_forward(cpu.context(), forward); }
  void run_backward() { ops::attention_backward(cpu.context(), backward); }

  Cpu cpu{1};
  std::vector<std::vector<double>> memory;  // doubles: aligned for every type
  std::unique_ptr<Memory> workspace;
  AttentionForward forward;
  AttentionBackward backward;
};

// The message names every one of `parts`.
template <class F>
void check_refused(F&& f, std::initializer_list<const char*> parts) {
  try {
    f();
  } catch (const Error& error) {
    INFO(error.what());
    for (const char* part : parts) CHECK(std::strstr(error.what(), part) != nullptr);
    CHECK(std::strchr(error.what(), '\n') == nullptr);
    return;
  }
  FAIL_CHECK("accepted what should be refused: " << *parts.begin());
}

void check_forward_refused(Call& call, std::initializer_list<const char*> parts) {
  check_refused([&] { call.run_forward(); }, parts);
}

void check_backward_refused(Call& call, std::initializer_list<const char*> parts) {
  check_refused([&] { call.run_backward(); }, parts);
}

// Both ways with the same options.
void check_options_refused(void (*spoil)(AttentionOptions&),
                           std::initializer_list<const char*> parts) {
  Call call;
  spoil(call.forward.options);
  spoil(call.backward.options);
  check_forward_refused(call, parts);
  check_backward_refused(call, parts);
}

}  // namespace

TEST_CASE("a right call runs") {
  Call call;
  call.run_forward();
  call.run_backward();
}

TEST_CASE("shapes that disagree") {
  {  // case 17: key length 5, value length 6
    Call call({1, 3, 1, 8}, {1, 5, 1, 8});
    std::vector<float> v(6 * 8);
    call.forward.v = ConstTensor(v.data(), DType::f32, {1, 6, 1, 8});
    check_forward_refused(call, {"v", "[1, 6, 1, 8]", "[1, 5, 1, 8]"});
  }
  {
    Call call({2, 3, 4, 8}, {2, 5, 3, 8});
    check_forward_refused(call, {"q has 4 heads", "k has 3"});
    check_backward_refused(call, {"q has 4 heads", "k has 3"});
  }
  {
    Call call({2, 3, 4, 8}, {3, 5, 2, 8});
    check_forward_refused(call, {"k has shape [3, 5, 2, 8]", "[2, 5, 2, 8]"});
  }
  {
    Call call({2, 3, 4, 8}, {2, 5, 2, 16});
    check_forward_refused(call, {"k has shape [2, 5, 2, 16]"});
  }
  {
    Call call;
    call.forward.q.shape.rank = call.forward.q.strides.rank = 3;
    check_forward_refused(call, {"q has shape [2, 3, 4]", "four"});
  }
  {
    Call call;
    call.forward.o.shape[1] = 2;
    check_forward_refused(call, {"o has shape [2, 2, 4, 8]", "[2, 3, 4, 8]"});
    call.forward.o.shape[1] = 3;
    call.forward.m.shape[2] = 4;
    check_forward_refused(call, {"m has shape [2, 4, 4]", "[2, 4, 3]"});
    call.backward.d_o.shape[0] = 1;
    check_backward_refused(call, {"d_o has shape [1, 3, 4, 8]"});
    call.backward.d_o.shape[0] = 2;
    call.backward.dk.shape[2] = 4;
    check_backward_refused(call, {"dk has shape [2, 5, 4, 8]", "[2, 5, 2, 8]"});
  }
}

TEST_CASE("zero sizes") {
  for (Shape q : {Shape{2, 3, 0, 8}, Shape{2, 3, 4, 0}}) {
    Call call(q, {2, 5, 2, q[3]});
    check_forward_refused(call, {"q", "0"});
    check_backward_refused(call, {"q", "0"});
  }
  Call no_kv_heads({2, 3, 4, 8}, {2, 5, 0, 8});
  check_forward_refused(no_kv_heads, {"k has 0 heads"});
  check_backward_refused(no_kv_heads, {"k has 0 heads"});

  for (Shape q : {Shape{0, 3, 4, 8}, Shape{2, 0, 4, 8}}) {  // nothing to do is done
    Call call(q, {q[0], q[1] == 0 ? 0 : 5, 2, 8});
    call.forward.workspace = call.backward.workspace = {};
    call.forward.q.data = call.forward.o.data = nullptr;
    call.run_forward();
    call.run_backward();
  }
}

TEST_CASE("head widths outside 1 to 256") {
  Call call({1, 3, 1, 257}, {1, 5, 1, 257});
  check_forward_refused(call, {"d = 257", "1 to 256"});
  check_backward_refused(call, {"d = 257", "1 to 256"});
}

TEST_CASE("dtypes") {
  Call call;
  call.forward.k.dtype = DType::bf16;
  check_forward_refused(call, {"k has dtype bf16", "f32"});
  call.forward.k.dtype = DType::f32;
  call.forward.m.dtype = DType::f64;
  check_forward_refused(call, {"m has dtype f64", "f32"});
  call.forward.m.dtype = DType::f32;
  call.forward.q.dtype = call.forward.k.dtype = call.forward.v.dtype = DType::i32;
  check_forward_refused(call, {"q has dtype i32", "bf16"});
  call.backward.dv.dtype = DType::f16;
  check_backward_refused(call, {"dv has dtype f16", "f32"});
  call.backward.dv.dtype = DType::f32;
  call.backward.l.dtype = DType::f16;
  check_backward_refused(call, {"l has dtype f16"});
}

TEST_CASE("strides and memory") {
  Call call;
  call.forward.v.strides[3] = 2;
  check_forward_refused(call, {"v has last stride 2", "1"});
  call.forward.v.strides[3] = 1;
  for (int dim : {0, 1, 2}) {
    const std::int64_t kept = call.forward.o.strides[dim];
    for (std::int64_t stride : {std::int64_t{0}, std::int64_t{7}, std::int64_t{-8}}) {
      call.forward.o.strides[dim] = stride;
      check_forward_refused(call, {"o is written", "overlap"});
    }
    call.forward.o.strides[dim] = kept;
  }
  call.forward.m.strides[2] = 2;
  check_forward_refused(call, {"m has strides", "dense"});
  call.forward.m.strides[2] = 1;
  call.forward.k.data = nullptr;
  check_forward_refused(call, {"k is null"});
  call.forward.k.data = static_cast<const char*>(call.forward.v.data) + 2;
  check_forward_refused(call, {"k starts at", "4 bytes"});
  call.forward.k.data = call.forward.v.data;
  call.run_forward();  // inputs may share memory
  call.forward.o.data = const_cast<void*>(call.forward.q.data);
  check_forward_refused(call, {"o and q", "same memory"});
  call.backward.dk.data = call.backward.dv.data;
  check_backward_refused(call, {"dk and dv", "same memory"});
  call.backward.dk.data = const_cast<void*>(call.backward.k.data);
  check_backward_refused(call, {"dk and k", "same memory"});
}

TEST_CASE("workspace too small or misaligned") {
  Call call;
  const std::int64_t needed =
      ops::attention_workspace(problem_of(call.backward), call.cpu.device->info());
  REQUIRE(needed > 0);
  const std::string bytes = std::to_string(needed);
  call.backward.workspace = call.backward.workspace.first(static_cast<std::size_t>(needed) - 1);
  check_backward_refused(call, {"workspace has", bytes.c_str()});
  call.backward.workspace = {call.workspace->data() + 4, static_cast<std::size_t>(needed)};
  check_backward_refused(call, {"workspace starts at", "64"});
}

TEST_CASE("options out of range") {
  using O = AttentionOptions;
  check_options_refused([](O& o) { o.window_left = -2; }, {"window_left is -2", "-1"});
  check_options_refused([](O& o) { o.window_right = -3; }, {"window_right is -3", "-1"});
  check_options_refused([](O& o) { o.scale = 0.0f; }, {"scale is 0", "above 0"});
  check_options_refused([](O& o) { o.scale = -1.0f; }, {"scale is -1"});
  check_options_refused([](O& o) { o.scale = std::numeric_limits<float>::infinity(); },
                        {"scale is inf"});
  check_options_refused([](O& o) { o.scale = std::nanf(""); }, {"scale is"});
  check_options_refused([](O& o) { o.softcap = -1; }, {"softcap is -1"});
  check_options_refused([](O& o) { o.softcap = std::numeric_limits<float>::infinity(); },
                        {"softcap is inf"});
  check_options_refused([](O& o) { o.dropout.p = 1; }, {"dropout.p is 1"});
  check_options_refused([](O& o) { o.dropout.p = -0.1f; }, {"dropout.p is -0.1"});
  check_options_refused([](O& o) { o.dropout.p = std::nanf(""); }, {"dropout.p"});
  check_options_refused([](O& o) { o.dropout.p = 0.1f; }, {"dropout.state is null"});
  static const StepState state;
  check_options_refused(
      [](O& o) { o.dropout = {.p = 0.1f, .site = 65536, .rows_per_sample = 3, .state = &state}; },
      {"dropout.site is 65536"});
  check_options_refused(
      [](O& o) { o.dropout = {.p = 0.1f, .site = 1, .rows_per_sample = 2, .state = &state}; },
      {"dropout.rows_per_sample is 2", "3"});
}

TEST_CASE("offsets of packed documents") {
  Call call({1, 10, 2, 8}, {1, 12, 1, 8});
  std::vector<std::int32_t> q = {0, 4, 10}, k = {0, 5, 12};
  const auto pack = [&](std::int64_t max_q = 6, std::int64_t max_k = 7) {
    call.forward.documents = {ConstTensor(q.data(), DType::i32, {std::int64_t(q.size())}),
                              ConstTensor(k.data(), DType::i32, {std::int64_t(k.size())}), max_q,
                              max_k};
    call.backward.documents = call.forward.documents;
  };
  const auto refused = [&](std::initializer_list<const char*> parts) {
    check_forward_refused(call, parts);
    check_backward_refused(call, parts);
  };
  pack();
  call.run_forward();
  pack(5);
  refused({"cu_seqlens_q", "6 rows", "max_seq_q = 5"});
  pack(6, 13);
  refused({"max_seq_k is 13", "12"});
  q[0] = 1, pack();
  refused({"cu_seqlens_q[0] is 1"});
  q = {0, 4, 3}, pack();
  refused({"cu_seqlens_q[2] is 3 after 4", "not decrease"});
  q = {0, 4, 10}, k = {0, 7, 13}, pack();
  refused({"cu_seqlens_k ends at 13", "12 rows"});
  k = {0, 5}, pack();
  refused({"cu_seqlens_k has 2 offsets", "3"});
  k = {0, 5, 12}, pack();
  call.forward.documents.cu_seqlens_k = {};
  check_forward_refused(call, {"cu_seqlens_k is missing"});
  pack();
  call.forward.documents.cu_seqlens_q.dtype = DType::f32;
  check_forward_refused(call, {"cu_seqlens_q has dtype f32", "i64"});

  Call two({2, 10, 2, 8}, {2, 12, 1, 8});
  two.forward.documents = call.backward.documents;
  check_forward_refused(two, {"q has batch 2", "1"});
}

TEST_CASE("kept probabilities") {
  Call call;
  std::vector<float> p(2 * 4 * 3 * 5);
  call.forward.probabilities = Tensor(p.data(), DType::f32, {2, 4, 3, 5});
  check_forward_refused(call, {"probabilities", "strategy auto", "naive"});
  call.forward.options.strategy = AttentionStrategy::naive;
  call.run_forward();
  call.forward.probabilities.shape[3] = 4;
  check_forward_refused(call, {"probabilities has shape [2, 4, 3, 4]", "[2, 4, 3, 5]"});
  call.forward.probabilities = Tensor(p.data(), DType::bf16, {2, 4, 3, 5});
  check_forward_refused(call, {"probabilities has dtype bf16", "f32"});
}
