// The streaming softmax itself: the same sums whatever the tiles, factors in [0, 1], no tile too
// many, and why its accumulators have 32 bits.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "cpu/attention/attention.h"
#include "cpu/attention/blocks.h"
#include "kernels/attention/cpu_scratch.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"
#include "tests/cpu/attention/instruction_sets.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::int64_t kPanel = cpu::kPanel;

// Forward and backward through `tiled` with tiles of one's own choice.
struct Tiled {
  Outputs out;
  std::int64_t forward_tiles = 0, backward_tiles = 0;

  Tiled(const Problem& p, const Inputs& in, std::int64_t tile_q, std::int64_t tile_k,
        int threads = 2) {
    Array q(p.dtype, p.q_shape(), Layout::dense), k(p.dtype, p.k_shape(), Layout::dense);
    Array v(p.dtype, p.k_shape(), Layout::dense), o(p.dtype, p.q_shape(), Layout::dense);
    Array d_o(p.dtype, p.q_shape(), Layout::dense), dq(p.dtype, p.q_shape(), Layout::dense);
    Array dk(p.dtype, p.k_shape(), Layout::dense), dv(p.dtype, p.k_shape(), Layout::dense);
    const DType state = p.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Shape constants{p.batch, p.heads, p.seq_q}, rows{p.batch, p.heads, p.seq_q, 1};
    Array m(state, rows, Layout::dense), l(state, rows, Layout::dense);
    q.set(in.q), k.set(in.k), v.set(in.v), d_o.set(in.d_o);

    AttentionForward forward;
    forward.q = q.view(), forward.k = k.view(), forward.v = v.view(), forward.o = o.view();
    forward.m = Tensor(m.view().data, state, constants);
    forward.l = Tensor(l.view().data, state, constants);
    forward.options = p.options;
    AttentionBackward backward;
    backward.q = q.view(), backward.k = k.view(), backward.v = v.view(), backward.o = o.view();
    backward.m = forward.m, backward.l = forward.l, backward.d_o = d_o.view();
    backward.dq = dq.view(), backward.dk = dk.view(), backward.dv = dv.view();
    backward.options = p.options;

    AttentionChoice choice;
    choice.tile_q = tile_q, choice.tile_k = tile_k;
    const std::int64_t real = size_of(state);
    const cpu_scratch::BackwardSums sums(problem_of(forward), tile_k, threads, real);
    const std::int64_t bytes =
        real * (threads * cpu_scratch::Backward(tile_q, tile_k, p.d, false).total + sums.total);
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes) + 64, std::byte{kPoison});
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    forward.workspace = backward.workspace = {memory.data() + (64 - address % 64) % 64,
                                              static_cast<std::size_t>(bytes)};
    ThreadPool pool(threads);
    cpu::AttentionTrace there, back;
    cpu::tiled_forward(pool, forward, choice, &there);
    cpu::tiled_backward(pool, backward, choice, &back);
    out.o = o.get(), out.m = m.get(), out.l = l.get();
    out.dq = dq.get(), out.dk = dk.get(), out.dv = dv.get();
    forward_tiles = there.tiles, backward_tiles = back.tiles;
  }
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= most)) most = std::abs(a[i] - b[i]);
  return most;
}

// Scores that rise with the key index: q = 1, k_j = 2 j / n in two numbers that 16 bits hold. Every
// tile of keys brings a new maximum.
struct Rising {
  static constexpr std::int64_t kKeys = 16384, kWidth = 8;
  Problem p;
  Inputs in;
  explicit Rising(DType dtype) {
    p.seq_q = kPanel, p.seq_k = kKeys, p.d = kWidth, p.dtype = dtype;
    p.options.scale = 2.f;
    in = normal_inputs(p, 5);
    std::fill(in.q.begin(), in.q.end(), 0.);
    std::fill(in.k.begin(), in.k.end(), 0.);
    for (std::size_t i = 0; i < kPanel; ++i) in.q[i * kWidth] = in.q[i * kWidth + 1] = 1;
    for (std::size_t j = 0; j < kKeys; ++j) {
      in.k[j * kWidth] = double(j / 128) / 128;
      in.k[j * kWidth + 1] = double(j % 128) / kKeys;
    }
    for (double& x : in.v) x = 1 + std::abs(x) / 4;
    round_inputs(in, dtype);
  }
};

// The kernel's recurrence over tiles of 64 keys, with O and l kept as Accumulator between tiles.
template <class Accumulator>
std::vector<double> fold_with(const Rising& x, int& rescaled) {
  const cpu::TileKernels<float>& kernels = *float_kernels().back().tile;
  constexpr std::int64_t kTile = 64, d = Rising::kWidth;
  const std::vector<float> k(x.in.k.begin(), x.in.k.end()), v(x.in.v.begin(), x.in.v.end());
  const std::vector<float> q(x.in.q.begin(), x.in.q.end());
  std::vector<float> panel(d * kPanel), s(kTile * kPanel), o(d * kPanel, 0.f), factor(kPanel);
  std::vector<float> m(kPanel, -std::numeric_limits<float>::infinity()), l(kPanel, 0.f);
  kernels.to_panel(q.data(), d, kPanel, d, *x.p.options.scale, panel.data());
  for (std::int64_t j = 0; j < Rising::kKeys; j += kTile) {
    kernels.products(kTile, kPanel, d, k.data() + j * d, d, 1, 0, panel.data(), s.data(), kPanel,
                     false);
    kernels.fold(s.data(), kTile, m.data(), l.data(), factor.data());
    rescaled += factor[0] < 1;
    kernels.accumulate(d, kTile, v.data() + j * d, d, s.data(), o.data(), factor.data());
    for (float& sum : o) sum = float(Accumulator(sum));
    for (float& sum : l) sum = float(Accumulator(sum));
  }
  std::vector<float> rows(d * kPanel);
  kernels.from_panel(o.data(), d, l.data(), kPanel, rows.data(), d);
  std::vector<double> out(rows.begin(), rows.end());
  for (double& value : out) value = rounded(value, x.p.dtype);
  return out;
}

}  // namespace

TEST_CASE("in double, key tiles of 1, 3, 64 and n give the same results") {
  for (bool causal : {false, true}) {
    Problem p;
    p.seq_q = 200, p.seq_k = 317, p.heads = 2, p.d = 16, p.dtype = DType::f64;
    p.options.causal = causal;
    const Inputs in = normal_inputs(p, 3, 2);
    const Outputs whole = Tiled(p, in, 64, p.seq_k).out;
    for (std::int64_t tile_k : {1, 3, 64}) {
      const Outputs x = Tiled(p, in, 64, tile_k).out;
      INFO("causal " << causal << " tile " << tile_k);
      CHECK(difference(x.o, whole.o) < 1e-13);
      CHECK(difference(x.lse(), whole.lse()) < 1e-13);
      CHECK(difference(x.m, whole.m) == 0);
      CHECK(difference(x.dq, whole.dq) < 1e-13);
      CHECK(difference(x.dk, whole.dk) < 1e-13);
      CHECK(difference(x.dv, whole.dv) < 1e-13);
    }
  }
}

TEST_CASE("every rescaling factor lies in [0, 1]") {
  for (const KernelSet<double>& set : double_kernels())
    for (std::int64_t tile : {1, 3, 64, 600}) {
      Problem p;
      p.seq_q = kPanel, p.seq_k = 600, p.dtype = DType::f64;
      const Inputs in = normal_inputs(p, 7, 30);  // scores up to a few thousand
      std::vector<double> panel(8 * kPanel), s(static_cast<std::size_t>(tile * kPanel)), m,
          l(kPanel);
      m.assign(kPanel, -std::numeric_limits<double>::infinity());
      set.tile->to_panel(in.q.data(), 8, kPanel, 8, 1., panel.data());
      int inside = 0, below_one = 0, tiles = 0;
      for (std::int64_t j = 0; j < p.seq_k; j += tile, ++tiles) {
        const std::int64_t keys = std::min(tile, p.seq_k - j);
        std::vector<double> factor(kPanel, -1);
        set.tile->products(keys, kPanel, 8, in.k.data() + j * 8, 8, 1, 0, panel.data(), s.data(),
                           kPanel, false);
        set.tile->fold(s.data(), keys, m.data(), l.data(), factor.data());
        for (double x : factor) inside += x >= 0 && x <= 1, below_one += x < 1;
      }
      CHECK(inside == tiles * kPanel);
      CHECK(below_one >= kPanel);  // at least the first tile's
    }
}

TEST_CASE("a row's bits do not depend on the rows beside it, nor on the query tile") {
  Problem p;
  p.batch = 2, p.seq_q = p.seq_k = 300, p.heads = 2, p.d = 24;
  p.options.window_left = 70, p.options.window_right = 9;
  const Inputs in = normal_inputs(p, 9);
  const Outputs a = Tiled(p, in, 32, 128).out, b = Tiled(p, in, 256, 128).out;
  CHECK(a.o == b.o);
  CHECK(a.m == b.m);
  CHECK(a.l == b.l);
  CHECK(a.dq == b.dq);
}

TEST_CASE("causal attention visits the tiles below and on the diagonal, no others") {
  for (std::int64_t n : {1, 63, 64, 65, 640, 1000})
    for (std::int64_t tile : {64, 128}) {
      Problem p;
      p.seq_q = p.seq_k = n, p.heads = 3, p.d = 4;
      const Inputs in = normal_inputs(p, 1);
      const std::int64_t side = (n + tile - 1) / tile;
      const Tiled full(p, in, tile, tile);
      p.options.causal = true;
      const Tiled causal(p, in, tile, tile);
      INFO("n " << n << " tile " << tile);
      CHECK(full.forward_tiles == 3 * side * side);
      CHECK(full.backward_tiles == 3 * side * side);
      CHECK(causal.forward_tiles == 3 * side * (side + 1) / 2);
      CHECK(causal.backward_tiles == 3 * side * (side + 1) / 2);
    }
}

TEST_CASE("tiles visited are those with a visible pair, for every mask, and their visitors agree") {
  for (auto [seq_q, seq_k] :
       {std::pair<std::int64_t, std::int64_t>{100, 100}, {40, 300}, {300, 40}})
    for (std::int64_t left : {-1, 0, 5, 90})
      for (std::int64_t right : {-1, 0, 30}) {
        AttentionProblem x;
        x.seq_q = x.max_seq_q = seq_q, x.seq_k = x.max_seq_k = seq_k;
        x.options.window_left = left, x.options.window_right = right;
        const cpu::Blocks blocks(x, {}, 32, 16);
        const cpu::Segment whole = blocks.whole_document(0);
        int wrong = 0;
        for (std::int64_t b = 0; b < blocks.blocks(); ++b)
          blocks.for_each_segment(b, [&](const cpu::Segment& s) {
            const cpu::Range tiles = blocks.tiles(s);
            for (std::int64_t t = 0; t < blocks.tiles_of_document(s); ++t) {
              const cpu::Range keys = blocks.tile(s, t), by = blocks.visitors(whole, t);
              bool live = false;
              for (std::int64_t i = s.at; i < s.at + s.rows; ++i) {
                const KeyRange seen = visible_keys(x.options, i, seq_q, seq_k);
                live |= std::max(seen.begin, keys.begin) < std::min(seen.end, keys.end);
              }
              wrong += live != (t >= tiles.begin && t < tiles.end);
              wrong += live != (b >= by.begin && b < by.end);
            }
          });
        INFO(seq_q << "x" << seq_k << " window " << left << "," << right);
        CHECK(wrong == 0);
      }
}

TEST_CASE("accumulators have 32 bits: with 16 the same recurrence misses the tolerance") {
  Cpu cpu(2);
  for (DType dtype : {DType::bf16, DType::f16}) {
    Rising x(dtype);
    INFO(name_of(dtype));
    x.p.options.strategy = AttentionStrategy::tiled;
    const Expected expected = expect_outputs(x.p, x.in, Passes::forward);
    Outputs got = run(cpu.context(), x.p, x.in, Passes::forward);
    CHECK(disagreement(x.p, got, expected) == "");

    int rescaled = 0;
    got.o = fold_with<float>(x, rescaled);
    CHECK(disagreement(x.p, got, expected) == "");
    CHECK(rescaled == Rising::kKeys / 64);  // every tile, the first from nothing
    got.o = dtype == DType::bf16 ? fold_with<bf16>(x, rescaled) : fold_with<f16>(x, rescaled);
    CHECK(disagreement(x.p, got, expected) != "");
  }
}
