// The inner loops, for every instruction set of this machine, against plain loops in double.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "contract/dropout.h"
#include "tests/catch.h"
#include "tests/cpu/attention/instruction_sets.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::int64_t kPanel = cpu::kPanel;
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class Real>
std::vector<Real> normal(std::int64_t count, unsigned seed, double factor = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw;
  std::vector<Real> x(static_cast<std::size_t>(count));
  for (Real& value : x) value = static_cast<Real>(factor * draw(random));
  return x;
}

// Calls body(set, unit roundoff) for every instruction set, float and double.
template <class Body>
void for_each_set(Body&& body) {
  for (const KernelSet<float>& set : float_kernels()) {
    INFO(set.tile->name << " float");
    body(set, 0x1p-24);
  }
  for (const KernelSet<double>& set : double_kernels()) {
    INFO(set.tile->name << " double");
    body(set, 0x1p-53);
  }
}

template <class Real>
double worst(const std::vector<Real>& got, const std::vector<double>& want) {
  double most = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double x = static_cast<double>(got[i]);
    const double error = x == want[i] ? 0 : std::abs(x - want[i]) / (1 + std::abs(want[i]));
    most = error <= most ? most : error;  // keeps NaN
  }
  return most;
}

}  // namespace

TEST_CASE("products match plain loops at every edge") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double unit) {
    for (std::int64_t rows : {1, 3, 8, 17, 64})
      for (std::int64_t depth : {1, 5, 32})
        for (std::int64_t columns : {16, 32})
          for (bool add : {false, true}) {
            constexpr std::int64_t kSegments = 3;
            const std::int64_t a_row = depth + 3, a_segment = rows * a_row + 5, c_row = columns + 7;
            const auto a = normal<Real>(kSegments * a_segment, 1);
            const auto b = normal<Real>(kSegments * depth * kPanel, 2);
            auto c = normal<Real>(rows * c_row, 3);
            std::vector<double> want(c.begin(), c.end());
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t n = 0; n < columns; ++n) {
                double sum = add ? want[static_cast<std::size_t>(r * c_row + n)] : 0;
                for (std::int64_t s = 0; s < kSegments; ++s)
                  for (std::int64_t k = 0; k < depth; ++k)
                    sum += double(a[static_cast<std::size_t>(s * a_segment + r * a_row + k)]) *
                           double(b[static_cast<std::size_t>((s * depth + k) * kPanel + n)]);
                want[static_cast<std::size_t>(r * c_row + n)] = sum;
              }
            set.tile->products(rows, columns, depth, a.data(), a_row, kSegments, a_segment,
                               b.data(), c.data(), c_row, add);
            CHECK(worst(c, want) < 300 * unit);
          }
  });
}

TEST_CASE("accumulate rescales and adds") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double unit) {
    for (std::int64_t rows : {1, 7, 40, 64})
      for (std::int64_t depth : {1, 6, 128}) {
        const std::int64_t a_row = rows + 3;
        const auto a = normal<Real>(depth * a_row, 1), b = normal<Real>(depth * kPanel, 2);
        const auto factor = normal<Real>(kPanel, 4);
        auto c = normal<Real>(rows * kPanel, 3);
        std::vector<double> want(c.begin(), c.end());
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t n = 0; n < kPanel; ++n) {
            double& sum = want[static_cast<std::size_t>(r * kPanel + n)];
            sum *= double(factor[static_cast<std::size_t>(n)]);
            for (std::int64_t k = 0; k < depth; ++k)
              sum += double(a[static_cast<std::size_t>(k * a_row + r)]) *
                     double(b[static_cast<std::size_t>(k * kPanel + n)]);
          }
        set.tile->accumulate(rows, depth, a.data(), a_row, b.data(), c.data(), factor.data());
        CHECK(worst(c, want) < 300 * unit);
      }
  });
}

TEST_CASE("fold: exponentials, sums and factors of every range, zeros for hidden keys, NaN stays") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double unit) {
    for (std::int64_t keys : {1, 3, 4, 7, 64}) {
      auto s = normal<Real>(keys * kPanel, 1);
      std::vector<Real> m(kPanel), l(kPanel), factor(kPanel);
      for (std::int64_t n = 0; n < kPanel; ++n) {  // lanes of ever wider scores, up to +-1e5
        const double width = std::pow(10, double(n) / 6);
        for (std::int64_t j = 0; j < keys; ++j) {
          Real& x = s[static_cast<std::size_t>(j * kPanel + n)];
          x = static_cast<Real>(double(x) * width);
          if ((j + n) % 5 == 0 || n == 31) x = -std::numeric_limits<Real>::infinity();
        }
        m[static_cast<std::size_t>(n)] =
            n % 3 == 0 ? -std::numeric_limits<Real>::infinity() : static_cast<Real>(width / 2);
        l[static_cast<std::size_t>(n)] = n % 3 == 0 ? Real(0) : Real(2);
      }
      m[31] = -std::numeric_limits<Real>::infinity();
      l[31] = 0;
      const std::vector<Real> before = s, old_m = m, old_l = l;
      set.tile->fold(s.data(), keys, m.data(), l.data(), factor.data());
      for (std::size_t n = 0; n < kPanel; ++n) {
        double top = double(old_m[n]), sum = 0;
        for (std::int64_t j = 0; j < keys; ++j)
          top = std::max(top, double(before[static_cast<std::size_t>(j) * kPanel + n]));
        CHECK(double(m[n]) == top);
        const double base = top == -kInf ? 0 : top;
        for (std::int64_t j = 0; j < keys; ++j) {
          const std::size_t at = static_cast<std::size_t>(j) * kPanel + n;
          const double t = double(before[at]) - base, p = std::exp(t);
          // What rounding t leaves, the polynomial's, and nothing below the smallest normal.
          CHECK(std::abs(double(s[at]) - p) <=
                p * (4 * unit + 2 * unit * std::abs(std::max(t, -1e3))) + 0x1p-125);
          if (before[at] == -std::numeric_limits<Real>::infinity()) CHECK(s[at] == 0);
          sum += p;
        }
        const double scale = std::exp(double(old_m[n]) - base);
        CHECK(double(factor[n]) == Approx(scale).epsilon(300 * unit).margin(0x1p-125));
        CHECK(double(l[n]) == Approx(scale * double(old_l[n]) + sum).epsilon(300 * unit));
      }
    }
    std::vector<Real> s(kPanel, std::numeric_limits<Real>::quiet_NaN()), m(kPanel, Real(0)),
        l(kPanel, Real(1)), factor(kPanel);
    set.tile->fold(s.data(), 1, m.data(), l.data(), factor.data());
    for (std::size_t n = 0; n < kPanel; ++n) CHECK(std::isnan(l[n]));
  });
}

TEST_CASE("keys behind a lane's last do not change the bits of its sum") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double) {
    for (std::int64_t seen : {1, 5, 6, 11}) {
      std::vector<Real> sums;
      for (std::int64_t keys : {seen, seen + 1, seen + 7}) {
        auto s = normal<Real>(seen * kPanel, 1);
        s.resize(static_cast<std::size_t>(keys * kPanel), -std::numeric_limits<Real>::infinity());
        std::vector<Real> m(kPanel, -std::numeric_limits<Real>::infinity()), l(kPanel, Real(0)),
            factor(kPanel);
        set.tile->fold(s.data(), keys, m.data(), l.data(), factor.data());
        sums.push_back(l[9]);
      }
      CHECK(sums[1] == sums[0]);
      CHECK(sums[2] == sums[0]);
    }
  });
}

TEST_CASE("softcap keeps its relative accuracy from 1e-6 to 1e6") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double unit) {
    constexpr std::int64_t kLines = 64;
    std::vector<Real> s(kLines * kPanel);
    for (std::size_t i = 0; i < s.size(); ++i)
      s[i] = static_cast<Real>((i % 2 ? 1 : -1) *
                               std::pow(10., -6 + 12. * double(i) / double(s.size())));
    const std::vector<Real> before = s;
    std::vector<Real> row = s;
    set.tile->soften(s.data(), kLines, Real(30));
    set.row->soften(row.data(), kLines * kPanel - 3, Real(30));
    for (std::size_t i = 0; i < s.size(); ++i) {
      const double want = 30 * std::tanh(double(before[i]) / 30);
      CHECK(std::abs(double(s[i]) - want) <= 12 * unit * std::abs(want));
      if (i + 3 < s.size()) CHECK(std::abs(double(row[i]) - want) <= 12 * unit * std::abs(want));
    }
  });
}

TEST_CASE("panels there and back, every number of rows and every width") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double) {
    for (std::int64_t rows : {1, 7, 8, 16, 31, 32})
      for (std::int64_t d : {1, 3, 16, 20, 64, 65}) {
        const std::int64_t x_row = d + 2;
        auto x = normal<Real>(rows * x_row, 1);
        std::vector<Real> y(static_cast<std::size_t>(d * kPanel), Real(7)),
            divisor(kPanel, Real(4));
        std::vector<Real> back(static_cast<std::size_t>(rows * x_row), Real(7));
        if (rows > 2) divisor[2] = 0;
        set.tile->to_panel(x.data(), x_row, rows, d, Real(2), y.data());
        set.tile->from_panel(y.data(), d, divisor.data(), rows, back.data(), x_row);
        for (std::int64_t c = 0; c < d; ++c)
          for (std::int64_t n = 0; n < kPanel; ++n)
            REQUIRE(y[static_cast<std::size_t>(c * kPanel + n)] ==
                    (n < rows ? 2 * x[static_cast<std::size_t>(n * x_row + c)] : Real(0)));
        for (std::int64_t n = 0; n < rows; ++n)
          for (std::int64_t c = 0; c < x_row; ++c) {
            const std::size_t at = static_cast<std::size_t>(n * x_row + c);
            REQUIRE(back[at] == (c >= d ? Real(7) : n == 2 ? Real(0) : x[at] / 2));
          }
      }
  });
}

TEST_CASE("single rows: dots, fold and weigh match plain loops at every edge") {
  for_each_set([]<class Real>(const KernelSet<Real>& set, double unit) {
    for (std::int64_t d : {1, 8, 40, 64, 128, 250})
      for (std::int64_t keys : {1, 15, 16, 50}) {
        const std::int64_t row = d + 3;
        const auto q = normal<Real>(d, 1), k = normal<Real>(keys * row, 2);
        std::vector<Real> s(static_cast<std::size_t>(keys)), o = normal<Real>(d, 3);
        std::vector<double> want(s.size());
        for (std::int64_t j = 0; j < keys; ++j)
          for (std::int64_t c = 0; c < d; ++c)
            want[static_cast<std::size_t>(j)] += double(q[static_cast<std::size_t>(c)]) *
                                                 double(k[static_cast<std::size_t>(j * row + c)]);
        set.row->dots(q.data(), k.data(), row, keys, d, s.data());
        CHECK(worst(s, want) < 400 * unit);
        std::vector<Real> panel(static_cast<std::size_t>(d * kPanel));
        std::vector<Real> tile(static_cast<std::size_t>(keys * kPanel));
        set.tile->to_panel(q.data(), d, 1, d, Real(1), panel.data());
        scores(*set.tile, keys, d, k.data(), row, panel.data(), tile.data());
        for (std::size_t j = 0; j < s.size(); ++j) REQUIRE(s[j] == tile[j * kPanel]);

        Real m = Real(1.5), l = Real(2);
        double top = 1.5, sum = 0;
        for (Real x : s) top = std::max(top, double(x));
        std::vector<double> p;
        for (Real x : s) p.push_back(std::exp(double(x) - top));
        for (double x : p) sum += x;
        const double factor = std::exp(1.5 - top);
        CHECK(double(set.row->fold(s.data(), keys, &m, &l)) == Approx(factor).epsilon(100 * unit));
        CHECK(double(m) == top);
        CHECK(double(l) == Approx(2 * factor + sum).epsilon(100 * unit));
        CHECK(worst(s, p) < 100 * unit);

        std::vector<double> sums(o.begin(), o.end());
        for (std::int64_t c = 0; c < d; ++c) {
          sums[static_cast<std::size_t>(c)] *= 0.5;
          for (std::int64_t j = 0; j < keys; ++j)
            sums[static_cast<std::size_t>(c)] += double(s[static_cast<std::size_t>(j)]) *
                                                 double(k[static_cast<std::size_t>(j * row + c)]);
        }
        set.row->weigh(s.data(), k.data(), row, keys, d, Real(0.5), o.data());
        CHECK(worst(o, sums) < 400 * unit);
      }
  });
}

TEST_CASE("every 16-bit number is widened exactly") {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const KernelSet<float>& set : float_kernels()) {
    std::vector<float> brain(all.size()), half(all.size());
    set.storage->widen_bf16(all.data(), brain.data(), 65536);
    set.storage->widen_f16(all.data(), half.data(), 65536);
    int wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      bf16 b;
      f16 h;
      b.bits = h.bits = all[i];
      const auto same = [](float x, float y) {
        return std::isnan(x) ? std::isnan(y)
                             : std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
      };
      wrong += !same(float(b), brain[i]) + !same(float(h), half[i]);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("dropout's words for 32 rows are those of its contract") {
  std::vector<std::uint32_t> positions, samples;
  for (std::uint32_t n = 0; n < kPanel; ++n) {
    positions.push_back(n * 7919 + (n << 27));
    samples.push_back(n / 3);
  }
  for (const KernelSet<float>& set : float_kernels())
    for (std::uint64_t key : {std::uint64_t{5}, 0xFEDCBA9876543210u})
      for (std::uint32_t group : {0u, 77u, 0xFFFFFFFFu}) {
        std::uint32_t words[4][kPanel];
        set.random->words(key, group, positions.data(), 3 + 9 * 65536u, samples.data(), words);
        int wrong = 0;
        for (std::size_t n = 0; n < kPanel; ++n) {
          const Philox::Words want = attention_dropout_words(key, samples[n], 3, 9, positions[n],
                                                             std::uint64_t{group} * 4);
          for (std::size_t w = 0; w < 4; ++w) wrong += words[w][n] != want[w];
        }
        CHECK(wrong == 0);
      }
}
