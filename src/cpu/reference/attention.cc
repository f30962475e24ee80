#include "cpu/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float_types.h"

namespace tilefold::cpu::reference {
namespace {

// Rows of one head of one batch element, or of a document in it: [seq, d], last stride 1.
template <class T>
struct Rows {
  T* at;
  std::int64_t stride;
  T* operator[](std::int64_t i) const { return at + i * stride; }
};

template <class T, class Void>
auto rows_of(const BasicTensor<Void>& x, std::int64_t batch, std::int64_t first,
             std::int64_t head) {
  auto* at = x.template as<T>();
  return Rows<std::remove_pointer_t<decltype(at)>>{
      at + batch * x.strides[0] + first * x.strides[1] + head * x.strides[2], x.strides[1]};
}

// Terms of a sum that are added up before they join it: one chain of n float32 additions of like
// size loses sqrt(n) roundings, at n = 5000 far more than all else in a row.
constexpr std::int64_t kSummed = 64;

std::int64_t offset_at(const ConstTensor& cu_seqlens, std::int64_t x) {
  return cu_seqlens.dtype == DType::i32 ? cu_seqlens.as<std::int32_t>()[x]
                                        : cu_seqlens.as<std::int64_t>()[x];
}

// One document: query rows [first_q, first_q + seq_q), key rows [first_k, first_k + seq_k).
struct Document {
  std::int64_t first_q, seq_q, first_k, seq_k;
};

// Calls body(Document) for each document, then rest(end_q, end_k), the rows that belong to none.
template <class Args, class Body, class Rest>
void for_each_document(const Args& args, Body&& body, Rest&& rest) {
  const PackedDocuments& packed = args.documents;
  if (!packed.cu_seqlens_q) return body(Document{0, args.q.shape[1], 0, args.k.shape[1]});
  const std::int64_t documents = packed.cu_seqlens_q.shape[0] - 1;
  for (std::int64_t x = 0; x < documents; ++x) {
    const std::int64_t q0 = offset_at(packed.cu_seqlens_q, x);
    const std::int64_t k0 = offset_at(packed.cu_seqlens_k, x);
    body(Document{q0, offset_at(packed.cu_seqlens_q, x + 1) - q0, k0,
                  offset_at(packed.cu_seqlens_k, x + 1) - k0});
  }
  rest(offset_at(packed.cu_seqlens_q, documents), offset_at(packed.cu_seqlens_k, documents));
}

// Keep factor of element (i, j): 0, or 1 / (1 - p). Indices are rows of the batch element.
template <class A>
class KeepMask {
 public:
  KeepMask(const Dropout& dropout, std::int64_t batch, std::int64_t seq_q, std::int64_t head,
           bool packed)
      : dropout_(dropout), first_row_(batch * seq_q), head_(head), packed_(packed) {
    if (dropout.p == 0) return;
    key_ = dropout_key(dropout.state->seed, dropout.state->step);
    threshold_ = dropout_threshold(dropout.p);
    kept_ = A(1) / (A(1) - A(dropout.p));
  }
  A operator()(std::int64_t i, std::int64_t j) const {
    if (dropout_.p == 0) return 1;
    const std::int64_t row = first_row_ + i, period = dropout_.rows_per_sample;
    const std::uint64_t sample =
        static_cast<std::uint64_t>(dropout_.state->first_sample + row / period);
    const std::uint64_t key_position = static_cast<std::uint64_t>(packed_ ? j % period : j);
    const Philox::Words words =
        attention_dropout_words(key_, sample, dropout_.site, static_cast<std::uint32_t>(head_),
                                static_cast<std::uint64_t>(row % period), key_position);
    return words[key_position % 4] >= threshold_ ? kept_ : A(0);
  }

 private:
  const Dropout& dropout_;
  std::int64_t first_row_, head_;
  bool packed_;
  std::uint64_t key_ = 0;
  std::uint32_t threshold_ = 0;
  A kept_ = 1;
};

template <class A>
A magnitude(A x, Terms terms) {
  return terms == Terms::absolute ? std::abs(x) : x;
}

template <class A, class T>
A dot(const T* a, const T* b, std::int64_t d, Terms terms = Terms::as_they_are) {
  A sum = 0;
  for (std::int64_t c = 0; c < d; c += kSummed) {
    A part = 0;
    for (std::int64_t e = c; e < std::min(c + kSummed, d); ++e)
      part += magnitude(A(a[e]) * A(b[e]), terms);
    sum += part;
  }
  return sum;
}

// sum[c] += weight * x[c]
template <class A, class T>
void add_scaled(A* sum, A weight, const T* x, std::int64_t d, Terms terms) {
  for (std::int64_t c = 0; c < d; ++c) sum[c] += weight * magnitude(A(x[c]), terms);
}

template <class A, class T>
void store(T* to, const A* from, A factor, std::int64_t d) {
  for (std::int64_t c = 0; c < d; ++c) to[c] = T(from[c] * factor);
}

template <class T>
void zero_rows(Rows<T> rows, std::int64_t begin, std::int64_t end, std::int64_t d) {
  for (std::int64_t i = begin; i < end; ++i) std::fill_n(rows[i], d, T(0));
}

// t[j] of query row q for the visible keys; the others are not touched.
template <class A, class T>
void scores_of_row(const T* q, Rows<const T> k, KeyRange keys, A scale, A softcap, std::int64_t d,
                   A* t) {
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const A s = scale * dot<A>(q, k[j], d);
    t[j] = softcap > 0 ? softcap * std::tanh(s / softcap) : s;
  }
}

// The scratch of one call; arrays of the accumulator type first, so that all are aligned.
template <class T>
struct Scratch {
  using A = accumulator_t<T>;
  A* t;    // [seq_k]           scores of one row
  A* sum;  // [d]               one output row
  A* dk;   // [seq_k, d]        backward only
  A* dv;   // [seq_k, d]        backward only
  T* p;    // [seq_q, seq_k]
  T* ds;   // [seq_q, seq_k]    backward only

  static std::int64_t bytes(const AttentionProblem& x) {
    const std::int64_t pairs = x.max_seq_q * x.max_seq_k, side = x.max_seq_k * x.d;
    const std::int64_t sums = x.max_seq_k + x.d + (x.backward ? 2 * side : 0);
    return sums * static_cast<std::int64_t>(sizeof(A)) +
           pairs * (x.backward ? 2 : 1) * static_cast<std::int64_t>(sizeof(T));
  }
  Scratch(const AttentionProblem& x, std::span<std::byte> memory) {
    expect(static_cast<std::int64_t>(memory.size()) >= bytes(x), "reference attention: scratch");
    const std::int64_t pairs = x.max_seq_q * x.max_seq_k, side = x.backward ? x.max_seq_k * x.d : 0;
    t = reinterpret_cast<A*>(memory.data());
    sum = t + x.max_seq_k;
    dk = sum + x.d;
    dv = dk + side;
    p = reinterpret_cast<T*>(dv + side);
    ds = p + (x.backward ? pairs : 0);
  }
};

// P of one head of one batch element where it is kept for backward, else the scratch's.
template <class T, class Void>
auto* stored_probabilities(const BasicTensor<Void>& x, std::int64_t b, std::int64_t h) {
  return x.template as<T>() + b * x.strides[0] + h * x.strides[1];
}

template <class T>
void forward(const AttentionForward& args, std::int64_t b, std::int64_t g,
             std::span<std::byte> memory, Terms terms) {
  using A = accumulator_t<T>;
  const AttentionProblem problem = problem_of(args);
  const Scratch<T> scratch(problem, memory);
  const std::int64_t d = problem.d, group = problem.heads / problem.kv_heads;
  const A scale = static_cast<A>(effective_scale(args.options, d));
  const A softcap = static_cast<A>(args.options.softcap);

  for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
    const KeepMask<A> keep(args.options.dropout, b, problem.seq_q, h, problem.documents > 0);
    A* const m = args.m.as<A>() + (b * problem.heads + h) * problem.seq_q;  // [seq_q]
    A* const l = args.l.as<A>() + (b * problem.heads + h) * problem.seq_q;  // [seq_q]
    const bool kept(args.probabilities);  // then before dropout, and whole rows
    T* const p = kept ? stored_probabilities<T>(args.probabilities, b, h) : scratch.p;

    const auto document = [&](const Document& x) {
      const auto q = rows_of<T>(args.q, b, x.first_q, h), k = rows_of<T>(args.k, b, x.first_k, g);
      const auto v = rows_of<T>(args.v, b, x.first_k, g);
      const auto o = rows_of<T>(args.o, b, x.first_q, h);
      for (std::int64_t i = 0; i < x.seq_q; ++i) {  // P
        const KeyRange keys = visible_keys(args.options, i, x.seq_q, x.seq_k);
        scores_of_row(q[i], k, keys, scale, softcap, d, scratch.t);
        A top = -std::numeric_limits<A>::infinity(), sum = 0;
        for (std::int64_t j = keys.begin; j < keys.end; ++j) top = std::max(top, scratch.t[j]);
        for (std::int64_t j = keys.begin; j < keys.end; j += kSummed) {
          A part = 0;
          for (std::int64_t n = j; n < std::min(j + kSummed, keys.end); ++n)
            part += std::exp(scratch.t[n] - top);
          sum += part;
        }
        if (kept) std::fill_n(p + i * x.seq_k, x.seq_k, T(0));
        for (std::int64_t j = keys.begin; j < keys.end; ++j)
          p[i * x.seq_k + j] = T(std::exp(scratch.t[j] - top) / sum *
                                 (kept ? A(1) : keep(x.first_q + i, x.first_k + j)));
        m[x.first_q + i] = top;
        l[x.first_q + i] = sum;
      }
      for (std::int64_t i = 0; i < x.seq_q; ++i) {  // O = P V
        const KeyRange keys = visible_keys(args.options, i, x.seq_q, x.seq_k);
        std::fill_n(scratch.sum, d, A(0));
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          A weight = A(p[i * x.seq_k + j]);
          if (kept) weight = A(T(weight * keep(x.first_q + i, x.first_k + j)));
          add_scaled(scratch.sum, weight, v[j], d, terms);
        }
        store(o[i], scratch.sum, A(1), d);
      }
    };
    const auto rest = [&](std::int64_t end_q, std::int64_t) {
      zero_rows(rows_of<T>(args.o, b, 0, h), end_q, problem.seq_q, d);
      std::fill(m + end_q, m + problem.seq_q, -std::numeric_limits<A>::infinity());
      std::fill(l + end_q, l + problem.seq_q, A(0));
    };
    for_each_document(args, document, rest);
  }
}

// P and dS of one head of one document, row by row.
template <class T, class A = accumulator_t<T>>
void probabilities_and_ds(const AttentionBackward& args, std::int64_t b, std::int64_t h,
                          std::int64_t g, const Document& x, const Scratch<T>& scratch,
                          Terms terms) {
  const std::int64_t heads = args.q.shape[2], seq_q = args.q.shape[1], d = args.q.shape[3];
  const A scale = static_cast<A>(effective_scale(args.options, d));
  const A softcap = static_cast<A>(args.options.softcap);
  const KeepMask<A> keep(args.options.dropout, b, seq_q, h, bool(args.documents.cu_seqlens_q));
  const auto q = rows_of<T>(args.q, b, x.first_q, h), k = rows_of<T>(args.k, b, x.first_k, g);
  const auto v = rows_of<T>(args.v, b, x.first_k, g), o = rows_of<T>(args.o, b, x.first_q, h);
  const auto d_o = rows_of<T>(args.d_o, b, x.first_q, h);
  const A* const m = args.m.as<A>() + (b * heads + h) * seq_q + x.first_q;  // [seq_q]
  const A* const l = args.l.as<A>() + (b * heads + h) * seq_q + x.first_q;  // [seq_q]

  for (std::int64_t i = 0; i < x.seq_q; ++i) {
    const KeyRange keys = visible_keys(args.options, i, x.seq_q, x.seq_k);
    const T* kept = nullptr;  // [seq_k]
    if (args.probabilities) kept = stored_probabilities<T>(args.probabilities, b, h) + i * x.seq_k;
    if (!kept || softcap > 0) scores_of_row(q[i], k, keys, scale, softcap, d, scratch.t);
    const A delta = dot<A>(d_o[i], o[i], d, terms);  // D
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const A t = scratch.t[j], p = kept ? A(kept[j]) : std::exp(t - m[i]) / l[i];
      const A mask = keep(x.first_q + i, x.first_k + j);
      const A dp = mask * dot<A>(d_o[i], v[j], d, terms);
      const A slope = softcap > 0 ? 1 - (t / softcap) * (t / softcap) : A(1);
      const A difference = terms == Terms::absolute ? dp + delta : dp - delta;
      scratch.p[i * x.seq_k + j] = T(mask * p);
      scratch.ds[i * x.seq_k + j] = T(p * difference * slope);
    }
  }
}

template <class T>
void backward(const AttentionBackward& args, std::int64_t b, std::int64_t g,
              std::span<std::byte> memory, Terms terms) {
  using A = accumulator_t<T>;
  const AttentionProblem problem = problem_of(args);
  const Scratch<T> scratch(problem, memory);
  const std::int64_t d = problem.d, group = problem.heads / problem.kv_heads;
  const A scale = static_cast<A>(effective_scale(args.options, d));

  const auto document = [&](const Document& x) {
    const auto k = rows_of<T>(args.k, b, x.first_k, g);
    std::fill_n(scratch.dk, x.seq_k * d, A(0));
    std::fill_n(scratch.dv, x.seq_k * d, A(0));
    for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
      probabilities_and_ds(args, b, h, g, x, scratch, terms);
      const auto q = rows_of<T>(args.q, b, x.first_q, h),
                 d_o = rows_of<T>(args.d_o, b, x.first_q, h);
      const auto dq = rows_of<T>(args.dq, b, x.first_q, h);
      for (std::int64_t i = 0; i < x.seq_q; ++i) {
        const KeyRange keys = visible_keys(args.options, i, x.seq_q, x.seq_k);
        std::fill_n(scratch.sum, d, A(0));
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          const A ds = A(scratch.ds[i * x.seq_k + j]), p = A(scratch.p[i * x.seq_k + j]);
          add_scaled(scratch.sum, ds, k[j], d, terms);
          add_scaled(scratch.dk + j * d, ds, q[i], d, terms);
          add_scaled(scratch.dv + j * d, p, d_o[i], d, terms);
        }
        store(dq[i], scratch.sum, scale, d);
      }
    }
    const auto dk = rows_of<T>(args.dk, b, x.first_k, g), dv = rows_of<T>(args.dv, b, x.first_k, g);
    for (std::int64_t j = 0; j < x.seq_k; ++j) {
      store(dk[j], scratch.dk + j * d, scale, d);
      store(dv[j], scratch.dv + j * d, A(1), d);
    }
  };
  const auto rest = [&](std::int64_t end_q, std::int64_t end_k) {
    for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
      zero_rows(rows_of<T>(args.dq, b, 0, h), end_q, problem.seq_q, d);
    zero_rows(rows_of<T>(args.dk, b, 0, g), end_k, problem.seq_k, d);
    zero_rows(rows_of<T>(args.dv, b, 0, g), end_k, problem.seq_k, d);
  };
  for_each_document(args, document, rest);
}

template <class Args, class Head>
void all_heads(const Args& args, Head&& head) {
  const AttentionProblem problem = problem_of(args);
  std::vector<double> memory(static_cast<std::size_t>(attention_scratch(problem) / 8));
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t g = 0; g < problem.kv_heads; ++g)
      head(b, g, std::as_writable_bytes(std::span(memory)));
}

}  // namespace

std::int64_t attention_scratch(const AttentionProblem& problem) {
  std::int64_t bytes = 0;
  for_float_dtype(problem.dtype, [&]<class T>(Type<T>) { bytes = Scratch<T>::bytes(problem); });
  return (bytes + 7) / 8 * 8;
}

void attention_forward(const AttentionForward& args, std::int64_t batch, std::int64_t kv_head,
                       std::span<std::byte> scratch, Terms terms) {
  for_float_dtype(args.q.dtype,
                  [&]<class T>(Type<T>) { forward<T>(args, batch, kv_head, scratch, terms); });
}

void attention_backward(const AttentionBackward& args, std::int64_t batch, std::int64_t kv_head,
                        std::span<std::byte> scratch, Terms terms) {
  for_float_dtype(args.q.dtype,
                  [&]<class T>(Type<T>) { backward<T>(args, batch, kv_head, scratch, terms); });
}

void attention_forward(const AttentionForward& args, Terms terms) {
  all_heads(args, [&](std::int64_t b, std::int64_t g, std::span<std::byte> scratch) {
    attention_forward(args, b, g, scratch, terms);
  });
}

void attention_backward(const AttentionBackward& args, Terms terms) {
  all_heads(args, [&](std::int64_t b, std::int64_t g, std::span<std::byte> scratch) {
    attention_backward(args, b, g, scratch, terms);
  });
}

}  // namespace tilefold::cpu::reference
