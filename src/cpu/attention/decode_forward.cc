// Strategy `decode`: few query rows over many keys, each key and value read from memory once and
// used for all rows of its group at once. Lanes run along the head width, since the rows are too
// few to fill them; parts of the key axis go to different threads.
#include "cpu/attention/attention.h"
#include "cpu/attention/partials.h"
#include "cpu/attention/row_kernels.h"

namespace tilefold::cpu {
namespace {

template <class T>
class Decode {
 public:
  using Real = accumulator_t<T>;

  Decode(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice)
      : pool_(pool),
        args_(args),
        problem_(problem_of(args)),
        blocks_(problem_, args.documents, choice.tile_q, choice.tile_k),
        kernels_(row_kernels<Real>()),
        layout_(choice.tile_k, problem_.d, args.options.dropout.p > 0),
        partials_layout_(problem_, choice.splits),
        base_(reinterpret_cast<Real*>(args.workspace.data())),
        partials_(base_ + pool.threads() * layout_.total, partials_layout_),
        group_(problem_.heads / problem_.kv_heads),
        scale_(static_cast<Real>(effective_scale(args.options, problem_.d))),
        cap_(static_cast<Real>(args.options.softcap)) {
    expect(static_cast<std::int64_t>(args.workspace.size() / sizeof(Real)) >=
               pool.threads() * layout_.total + partials_layout_.total,
           "decode attention: workspace");
  }

  void run() const {
    const std::int64_t sequences = problem_.batch * blocks_.documents();  // one of them is 1
    pool_.parallel_for(
        sequences * problem_.kv_heads * partials_.parts, [&](std::int64_t item, int worker) {
          const std::int64_t part = item % partials_.parts, which = item / partials_.parts;
          sweep(which / problem_.kv_heads, which % problem_.kv_heads, part, worker);
        });
    combine<T>(pool_, args_, blocks_, partials_);
  }

 private:
  // One part of the keys of one kv head of one batch element or document.
  void sweep(std::int64_t sequence, std::int64_t kv_head, std::int64_t part, int worker) const {
    const bool packed = problem_.documents > 0;
    const std::int64_t batch = packed ? 0 : sequence, d = problem_.d;
    const Segment s = blocks_.whole_document(packed ? sequence : 0);
    if (s.rows == 0) return;
    const auto k = rows_of<T>(args_.k, batch, kv_head), v = rows_of<T>(args_.v, batch, kv_head);
    Real* const scratch = base_ + worker * layout_.total;
    for (std::int64_t g = 0; g < group_; ++g) {
      const std::int64_t at = partial_row(batch, kv_head * group_ + g, part) + s.at;
      std::fill_n(partials_.o + at * d, s.rows * d, Real(0));
      std::fill_n(partials_.m + at, s.rows, -std::numeric_limits<Real>::infinity());
      std::fill_n(partials_.l + at, s.rows, Real(0));
    }
    const Range tiles = part_of(blocks_.tiles(s), part, partials_.parts);
    for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
      const Range keys = blocks_.tile(s, t);
      const auto tile_k =
          rows_in_place(k, s.k_at + keys.begin, keys.size(), d, scratch + layout_.k);
      const auto tile_v =
          rows_in_place(v, s.k_at + keys.begin, keys.size(), d, scratch + layout_.v);
      for (std::int64_t g = 0; g < group_; ++g)
        for (std::int64_t i = 0; i < s.rows; ++i)
          row(s, keys, tile_k, tile_v, batch, kv_head * group_ + g, i, part, scratch);
    }
  }

  // Query row i of the document against one tile.
  void row(const Segment& s, const Range& tile, Rows<const Real> k, Rows<const Real> v,
           std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t part,
           Real* scratch) const {
    const KeyRange seen = blocks_.visible(s, i);
    const Range keys{std::max(seen.begin, tile.begin), std::min(seen.end, tile.end)};
    if (keys.size() <= 0) return;
    const std::int64_t d = problem_.d, skipped = keys.begin - tile.begin;
    Real *q = scratch + layout_.q, *p = scratch + layout_.s, *keep = scratch + layout_.keep;
    widen(rows_of<T>(args_.q, batch, head)[s.at + i], q, d);
    for (std::int64_t c = 0; c < d; ++c) q[c] *= scale_;

    kernels_.dots(q, k[skipped], k.stride, keys.size(), d, p);
    if (cap_ > 0) kernels_.soften(p, keys.size(), cap_);
    const std::int64_t at = partial_row(batch, head, part) + s.at + i;
    const Real factor = kernels_.fold(p, keys.size(), partials_.m + at, partials_.l + at);
    const Keep<Real> dropout(args_.options.dropout, batch, problem_.seq_q, head,
                             problem_.documents > 0);
    if (dropout.on()) {
      dropout.fill(s.at + i, s.at + i + 1, s.k_at + keys.begin, s.k_at + keys.end, keep);
      for (std::int64_t j = 0; j < keys.size(); ++j) p[j] *= keep[j * kPanel];
    }
    kernels_.weigh(p, v[skipped], v.stride, keys.size(), d, factor, partials_.o + at * d);
  }

  // Number of a head's first row in the partials of a part.
  std::int64_t partial_row(std::int64_t batch, std::int64_t head, std::int64_t part) const {
    return part * partials_.rows + (batch * problem_.heads + head) * problem_.seq_q;
  }

  ThreadPool& pool_;
  const AttentionForward& args_;
  AttentionProblem problem_;
  Blocks blocks_;
  const RowKernels<Real>& kernels_;
  cpu_scratch::Decode layout_;
  cpu_scratch::Partials partials_layout_;
  Real* base_;
  Partials<Real> partials_;
  std::int64_t group_;
  Real scale_, cap_;
};

}  // namespace

void decode_forward(ThreadPool& pool, const AttentionForward& args, const AttentionChoice& choice) {
  for_float_dtype(args.q.dtype, [&]<class T>(Type<T>) { Decode<T>(pool, args, choice).run(); });
}

}  // namespace tilefold::cpu
