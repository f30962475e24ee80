// The body of hopper_backward.h: the kernel of the gradients.
//
// A job is one (document or batch, key head, tile of keys). A step is one query tile, of one of the
// group's heads, that sees the keys. Block = one warpgroup that feeds and two consumer warpgroups of
// 64 keys each:
//
//   scheduler  which job is next, one ahead
//   producer   K; then Q, row statistics and dO of each step, V behind the first Q
//   consumer   Sᵀ = K Qᵀ and dPᵀ = V dOᵀ; P; dS = P (dP - D); dS to shared memory;
//              dV += P dO, dQ = dS K (both warpgroups' keys, half of the result each), dK += dS Q;
//              dQ to shared memory; after the last step dV and dK to shared memory
//   writers    two warps, every other part each: parts of dQ to global memory when it is their turn,
//              dV and dK
//
// Scores are computed transposed, so that P and dS are left operands without leaving registers.
//
// Order: the key tiles that see a query tile add their parts of dQ one after the other; `turn` counts
// them. A block waits only for jobs with smaller numbers, which were taken before its own. Two orders:
//   down   keys from the last tile to the first, queries from the first to the last: under a causal
//          mask each key tile begins two or more steps behind the one that it waits for
//   up     keys from the first tile to the last, queries from the last to the first: the longest jobs
//          come first, so that all blocks end together; also where all key tiles see all queries
//
// longer than 450 lines because the roles of one kernel's warps are read side by side.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_backward_rows.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/tile/ring.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

constexpr int kBackwardGroups = 2;
constexpr std::int64_t kDownSection = 4;  // pairs whose key tiles are taken in turn
constexpr int kBackwardFeeder = 24, kBackwardConsumer = 240;  // registers a thread
constexpr int kBackwardThreads = (kBackwardGroups + 1) * tile::kWarpgroup;

struct BackwardJob {
  Extent at;
  Diagonal diagonal;
  int key_head, batch;
  int key;           // first key, in the document; -1: no more jobs
  int tile;          // key / kKeys
  int first, count;  // query tiles
  bool down;         // their order
  Range whole;       // query tiles that need no mask
  int tile_base;     // where the document's query tiles start
};

// The steps of a job, head after head.
struct StepPlace {
  int left, head, tile;

  __device__ __forceinline__ StepPlace(const BackwardJob& job, int group)
      : left(tile::uniform(job.count) * group), head(job.key_head * group) {
    tile = start(job);
  }
  __device__ __forceinline__ bool more() const { return left > 0; }
  __device__ __forceinline__ void next(const BackwardJob& job) {
    --left;
    tile += job.down ? 1 : -1;
    if (tile < job.first || tile >= job.first + job.count) {
      tile = start(job);
      ++head;
    }
  }
  static __device__ __forceinline__ int start(const BackwardJob& job) {
    return job.first + (job.down ? 0 : job.count - 1);
  }
};

template <class Element, int kWidth>
struct BackwardShared {
  static constexpr int kRows = BackwardTiles<kWidth>::kRows;
  static constexpr int kKeys = BackwardTiles<kWidth>::kKeys;
  using Rows = tile::SharedTile<Element, kRows, kWidth>;
  using Keys = tile::SharedTile<Element, kKeys, kWidth>;
  using Scores = tile::SharedTile<Element, kKeys, kRows>;
  struct Stats {
    float offset[kRows];  // m log2 e + log2 l; +inf where p is zero
    float d[kRows];
    float huge[4];        // [0] != 0: some |m log2 e| is beyond kFoldLimit
  };
  // A step's part of dQ as its fragments lie; after the last step a tile of dV, then of dK.
  struct alignas(1024) Part {
    float4 x[kBackwardGroups][8][tile::kWarpgroup];
    __device__ Keys& keys() { return *reinterpret_cast<Keys*>(x); }
  };

  Keys k, v;
  Rows q[2], d_o[2];
  Scores ds[2];
  Part part[2];
  Stats stats[2];
  BackwardJob job[2];
  tile::RingBarriers<2> jobs, q_ring, do_ring, part_ring;
  tile::RingBarriers<1> k_ring, v_ring;
  std::uint64_t patch;  // a tile that the producer still has to clear the tail of
  std::uint64_t want;   // the producer wants the next job
};

// Fills a job in shared memory.
template <int kRows, int kKeys>
__device__ inline void make_backward_job(const BackwardParams& p, std::int64_t index,
                                         BackwardJob& job) {
  const std::int64_t all =
      static_cast<std::int64_t>(p.documents.q ? p.documents.count : p.batch) * p.key_heads;
  if (index >= all * p.tiles_k) {
    job.key = -1;
    job.at = {0, 0, 0, 0};
    return;
  }
  const std::int64_t down_jobs = p.down_pairs * p.tiles_k;
  job.down = index < down_jobs;
  const std::int64_t begin = job.down ? 0 : p.down_pairs;  // first pair of this order
  const std::int64_t end = job.down ? p.down_pairs : all, size = job.down ? kDownSection : p.section;
  if (!job.down) index -= down_jobs;
  const std::int64_t section = index / (size * p.tiles_k);
  const auto within = static_cast<std::uint32_t>(index - section * size * p.tiles_k);
  const auto pairs = static_cast<std::uint32_t>(least(size, end - begin - section * size));
  const auto pair = static_cast<std::uint32_t>(begin + section * size + within % pairs);
  const int sequence = static_cast<int>(pair / static_cast<std::uint32_t>(p.key_heads));
  const int document = p.documents.q ? sequence : 0;
  job.key_head = static_cast<int>(pair % static_cast<std::uint32_t>(p.key_heads));
  job.batch = p.documents.q ? 0 : sequence;
  const Extent at = extent_of(p.documents, document, p.seq_q, p.seq_k);
  job.at = at;
  job.diagonal = diagonal_of(at, p.window);
  const auto step = static_cast<int>(within / pairs);
  job.tile = job.down ? p.tiles_k - 1 - step : step;
  const int key = job.tile * kKeys;
  job.key = key;
  job.tile_base = first_query_tile<kRows>(p, at, document);
  const Range seeing = queries_seeing(at, p.window, key, kKeys);
  const Range by_all = queries_seeing_all(at, p.window, key, kKeys);
  job.first = seeing.first / kRows;
  job.count = seeing.last < seeing.first ? 0 : seeing.last / kRows - seeing.first / kRows + 1;
  // The last query tile may end beyond the document: its tail has p = 0 by its offsets.
  const bool to_end = by_all.last == at.q_count - 1;
  job.whole = {(by_all.first + kRows - 1) / kRows,
               to_end ? by_all.last / kRows : (by_all.last + 1) / kRows - 1};
}

// Takes a job only when it is about to be needed: others may wait for a job that is taken.
template <class Element, int kWidth>
__device__ void schedule_backward(BackwardShared<Element, kWidth>& shared,
                                  const BackwardParams& p) {
  using Tiles = BackwardTiles<kWidth>;
  tile::RingPlace<2> jobs;
  for (bool more = true; more; jobs.next()) {
    jobs.wait_empty(shared.jobs);
    if (jobs.count > 0) ptx::mbarrier_wait(&shared.want, (jobs.count - 1) & 1);
    if (tile::lane() == 0) {
      BackwardJob& job = shared.job[jobs.stage()];
      do {  // a short document has fewer tiles than the longest
        make_backward_job<Tiles::kRows, Tiles::kKeys>(p, atomicAdd(p.next_job, 1u), job);
      } while (job.key >= job.at.k_count);
      more = job.key >= 0;
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
    }
    more = __shfl_sync(0xffffffffu, more, 0);
  }
}

template <class Element, int kWidth>
__device__ void produce_backward(BackwardShared<Element, kWidth>& shared,
                                 const BackwardParams& p) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  constexpr auto kStatBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Stats));
  const bool leader = tile::lane() == 0;
  tile::RingPlace<2> jobs, place;
  tile::RingPlace<1> key_place;
  std::uint32_t patches = 0;

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    // Rows past a packed document belong to others and may hold anything: they become zero. `full`
    // counts `more` bytes besides the tile's.
    const auto load = [&](auto& to, const CUtensorMap* map, int row, int rows, int head,
                          std::uint64_t* full, std::uint32_t more) {
      using Tile = std::remove_reference_t<decltype(to)>;
      const bool patch = p.documents.q != nullptr && rows < Tile::kRows;
      if (leader) {
        if (patch) {
          ptx::mbarrier_arrive_expect(&shared.patch, Tile::kBytes);
        } else {
          ptx::mbarrier_arrive_expect(full, Tile::kBytes + more);
        }
        tile::load_tile<Tile::kRows>(to, map, {row, head, job.batch},
                                     patch ? &shared.patch : full);
      }
      if (patch) {
        ptx::mbarrier_wait(&shared.patch, patches++ & 1);
        tile::clear_rows(to, rows);
        if (leader) ptx::mbarrier_arrive_expect(full, more);
      }
    };
    const auto load_keys = [&](auto& to, const CUtensorMap* map, tile::RingBarriers<1>& ring) {
      key_place.wait_empty(ring);
      load(to, map, job.at.k_begin + job.key, job.at.k_count - job.key, job.key_head,
           &ring.full[0], 0);
    };
    if (job.count > 0) load_keys(shared.k, &p.k, shared.k_ring);
    constexpr int kAhead = 2;  // steps for which the next job is made
    StepPlace step(job, p.group);
    if (step.left <= kAhead && leader) ptx::mbarrier_arrive(&shared.want);
    for (bool first = true; step.more(); step.next(job), place.next()) {
      if (step.left == kAhead + 1 && leader) ptx::mbarrier_arrive(&shared.want);
      const int head = step.head, tile = step.tile;
      const int row = job.at.q_begin + tile * kRows, rows = job.at.q_count - tile * kRows;
      place.wait_empty(shared.q_ring);
      std::uint64_t* full = &shared.q_ring.full[place.stage()];
      load(shared.q[place.stage()], &p.q, row, rows, head, full, kStatBytes);
      if (leader)
        ptx::copy_bytes_to_shared(
            &shared.stats[place.stage()],
            p.stats + static_cast<std::int64_t>(
                          query_tile(p, job.batch, head, job.tile_base + tile)) *
                          (2 * kRows + 4),
            kStatBytes, full);
      if (first) {
        load_keys(shared.v, &p.v, shared.v_ring);
        key_place.next();
        first = false;
      }
      place.wait_empty(shared.do_ring);
      load(shared.d_o[place.stage()], &p.d_o, row, rows, head,
           &shared.do_ring.full[place.stage()], 0);
    }
    __syncwarp();
    jobs.release(shared.jobs);
  }
}

// How many key tiles add to a query tile before this job's: those from the first or last key that
// some of its queries see.
template <int kRows, int kKeys>
__device__ inline int turn_of(const BackwardJob& job, int tile) {
  const Diagonal& d = job.diagonal;
  if (job.down) {
    const int last_row = min((tile + 1) * kRows, job.at.q_count) - 1;
    return min(last_row + d.off + d.right, job.at.k_count - 1) / kKeys - job.tile;
  }
  return job.tile - max(tile * kRows + d.off - d.left, 0) / kKeys;
}

// A tile of dK or dV; by one warp.
template <class Keys>
__device__ inline void write_keys(const Keys& from, const BackwardParams::Keys& to,
                                  const BackwardParams& p, const BackwardJob& job) {
  const int row = job.at.k_begin + job.key, count = job.at.k_count - job.key;
  if (p.documents.q == nullptr || count >= Keys::kRows) {
    if (tile::lane() == 0) {
#pragma unroll 1
      for (int slab = 0; slab < Keys::kSlabs; ++slab)
        ptx::copy_tensor_to_global(&to.map, from.bytes + slab * Keys::kSlabBytes,
                                   slab * tile::kSlabColumns, row, job.key_head, job.batch);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
  } else {
    // The copy engine would write into the next document.
    tile::copy_rows<32>(to.data + job.batch * to.at.batch + job.key_head * to.at.head +
                            static_cast<std::int64_t>(row) * to.at.row,
                        to.at.row, from, count, p.d);
  }
}

// One of two warps: every other part.
template <class Element, int kWidth>
__device__ void write_parts(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                            std::uint32_t stage) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows, kKeys = Shared::kKeys;
  constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Part));
  tile::RingPlace<2> jobs, place;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    for (StepPlace step(job, p.group); step.more(); step.next(job), place.next()) {
      if (place.stage() != stage || tile::lane() != 0) continue;
      const int tile = step.tile;
      const std::uint32_t at = query_tile(p, job.batch, step.head, job.tile_base + tile);
      std::uint32_t rank = 1;
      if (p.ordered) {
        rank = static_cast<std::uint32_t>(turn_of<kRows, kKeys>(job, tile));
        while (ptx::load_relaxed(p.turn + at) != rank) {
        }
        ptx::fence_acquire_release();
        ptx::fence_proxy_global();
      }
      place.wait_full(shared.part_ring);
      float* to = p.dq_sum + static_cast<std::int64_t>(at) * (kRows * kWidth);
      const auto* from = reinterpret_cast<const float*>(shared.part[stage].x);
      if (rank == 0) {
        ptx::copy_bytes_to_global(to, from, kBytes);
      } else {
        ptx::add_floats_to_global(to, from, kBytes);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(&shared.part_ring.empty[stage]);
      if (p.ordered) {
        ptx::bulk_wait<0>();
        ptx::fence_proxy_global();
        ptx::store_release(p.turn + at, rank + 1);
      }
    }
    __syncwarp();
    for (int value = 1; value >= 0; --value, place.next()) {
      if (place.stage() != stage) continue;
      place.wait_full(shared.part_ring);
      write_keys(shared.part[stage].keys(), value ? p.dv_out : p.dk_out, p, job);
      __syncwarp();
      if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.part_ring.empty[stage]);
    }
    jobs.release(shared.jobs);
  }
  if (tile::lane() == 0) ptx::bulk_wait<0>();
}

// What one step knows of its scores: Sᵀ in raw units becomes P, dPᵀ becomes dS.
template <class Shared>
struct Step {
  const BackwardParams& p;
  const BackwardJob& job;
  const typename Shared::Stats& stats;
  int head, query_tile;
  int key;  // first of the warpgroup, in the document
  static constexpr int kRows = Shared::kRows;
  using F = tile::Fragment<kRows>;

  // Both of a thread's column pair, for columns 8 g and on.
  __device__ __forceinline__ float2 at(const float* row, int g) const {
    return reinterpret_cast<const float2*>(row + tile::first_column())[4 * g];
  }

  // The maximum of a query, by its column from the thread's first; 0 where no key is seen.
  __device__ __forceinline__ float maximum(int column) const {
    const float* m = p.m + (static_cast<std::int64_t>(job.batch) * p.heads + head) * p.seq_q +
                     job.at.q_begin + query_tile * kRows;
    const float top =
        m[min(tile::first_column() + column, job.at.q_count - query_tile * kRows - 1)];
    return top == tile::negative_infinity() ? 0 : top;
  }

  __device__ __forceinline__ bool needs_mask() const {
    return query_tile < job.whole.first || query_tile > job.whole.last;
  }

  __device__ __forceinline__ void mask(F& s) const {
    const Diagonal& d = job.diagonal;
    const int j = key + tile::first_row();
    const int i = j - d.off - query_tile * kRows;  // the diagonal's column
    if (query_tile < job.whole.first) tile::hide_before(s, i - d.right, i + 8 - d.right);
    if (query_tile > job.whole.last) {
      const int none = -1, k_count = job.at.k_count;  // for keys beyond the document
      tile::hide_after(s, j < k_count ? i + d.left : none, j + 8 < k_count ? i + 8 + d.left : none);
    }
  }

  // Scores times `unit` are natural.
  __device__ __forceinline__ void exponentials(F& s, float unit, bool huge) const {
    if (!huge) {
      const float c = unit * tile::kLog2e;
#pragma unroll
      for (int g = 0; g < kRows / 8; ++g) {
        const float2 offset = at(stats.offset, g);
#pragma unroll
        for (int r = 4 * g; r < 4 * g + 4; ++r)
          s.x[r] = ptx::exp2(fmaf(s.x[r], c, r % 2 ? -offset.y : -offset.x));
      }
      return;
    }
    // The maximum is subtracted first; the offsets are log2 l alone, +inf where p is zero.
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 offset = at(stats.offset, g);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float shift = maximum(8 * g + odd);
#pragma unroll
        for (int r = 4 * g + odd; r < 4 * g + 4; r += 2)
          s.x[r] = ptx::exp2(
              fmaf(s.x[r] * unit - shift, tile::kLog2e, odd ? -offset.y : -offset.x));
      }
    }
  }

  // Scores in raw units become capped scores in natural units.
  __device__ __forceinline__ void cap(F& s) const {
    const float inner = p.scale / p.softcap;
#pragma unroll
    for (int r = 0; r < F::kCount; ++r) s.x[r] = p.softcap * tile::tanh_accurate(s.x[r] * inner);
  }

  __device__ __forceinline__ void gradients(const F& probabilities, F& dp) const {
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 d = at(stats.d, g);
#pragma unroll
      for (int r = 4 * g; r < 4 * g + 4; ++r)
        dp.x[r] = probabilities.x[r] * (dp.x[r] - (r % 2 ? d.y : d.x));
    }
  }

  // dS of capped scores t: times 1 - (t / cap)^2, with t from its probability.
  __device__ __forceinline__ void slopes(const F& probabilities, F& ds, bool huge) const {
    const float base = 1 / p.softcap, unit = tile::kLn2 / p.softcap;
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 offset = at(stats.offset, g);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float shift = huge ? maximum(8 * g + odd) * base : 0.f;
#pragma unroll
        for (int r = 4 * g + odd; r < 4 * g + 4; r += 2) {
          const float t = fmaf(
              ptx::log2(probabilities.x[r]) + (odd ? offset.y : offset.x), unit, shift);
          ds.x[r] = probabilities.x[r] > 0 ? ds.x[r] * (1 - t * t) : 0.f;
        }
      }
    }
  }
};

template <class Element, int kWidth>
__device__ void consume_backward(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                                 int group) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  constexpr int kAll = 1, kAllThreads = kBackwardGroups * tile::kWarpgroup;  // named barrier
  const int own = 64 * group;  // first of the warpgroup's key rows
  // The half of dQ this warpgroup makes: rows at width 64, columns at width 128.
  const int dq_row = kRows > 64 ? own : 0, dq_column = kRows > 64 ? 0 : own;

  tile::RingPlace<2> jobs, place;
  tile::RingPlace<1> key_place;
  tile::Fragment<kWidth> dk, dv;
  // A part for each step, and two more at the end of each job.
  const auto part_place = [&] { return tile::RingPlace<2>{place.count + 2 * jobs.count}; };
  // After this warp wrote its share of a part.
  const auto send = [&](const tile::RingPlace<2>& at) {
    ptx::fence_proxy_shared();
    __syncwarp();
    if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.part_ring.full[at.stage()]);
  };
  const auto send_keys = [&](tile::RingPlace<2> at, const tile::Fragment<kWidth>& from) {
    tile::Packed<kWidth> packed;
    tile::pack<Element>(packed, from);
    at.wait_empty(shared.part_ring);
    tile::store(shared.part[at.stage()].keys(), own, packed);
    send(at);
  };

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    dk.clear();
    dv.clear();
    StepPlace at(job, p.group);
    const bool any = at.more();
    if (any) {
      key_place.wait_full(shared.k_ring);
      key_place.wait_full(shared.v_ring);
    }
    for (; at.more(); at.next(job)) {
      tile::Fragment<kRows> s, dp;
      tile::Packed<kRows> packed_p, packed_ds;
      tile::Fragment<64> dq;
      const std::uint32_t stage = tile::uniform(place.stage());
      const auto& q = shared.q[stage];
      const auto& d_o = shared.d_o[stage];
      auto& ds = shared.ds[stage];
      const auto& stats = shared.stats[stage];
      const Step<Shared> step{p, job, stats, at.head, at.tile, job.key + own};

      place.wait_full(shared.q_ring);
      tile::begin_products();
      tile::multiply_rows(s, shared.k, own, q);
      tile::end_group();
      // Read before the wait: shared memory answers slowly while products run.
      const bool needs_mask = step.needs_mask(), huge = stats.huge[0] != 0;
      place.wait_full(shared.do_ring);
      tile::begin_products();
      tile::multiply_rows(dp, shared.v, own, d_o);
      tile::end_group();

      tile::wait_products<1>();
      if (p.softcap > 0) step.cap(s);
      if (needs_mask) step.mask(s);
      step.exponentials(s, p.softcap > 0 ? 1.f : p.scale, huge);
      tile::wait_products<0>();
      step.gradients(s, dp);
      if (p.softcap > 0) step.slopes(s, dp, huge);
      tile::pack<Element>(packed_ds, dp);
      tile::store(ds, own, packed_ds);
      tile::pack<Element>(packed_p, s);
      ptx::fence_proxy_shared();

      tile::begin_products();
      tile::accumulate(dv, packed_p, d_o);
      tile::end_group();
      ptx::named_barrier_sync(kAll, kAllThreads);
      tile::begin_products();
      tile::multiply_columns(dq, ds, dq_row, shared.k, dq_column);
      tile::end_group();
      tile::accumulate(dk, packed_ds, q);
      tile::end_group();

      tile::wait_products<2>();
      place.release(shared.do_ring);
      tile::wait_products<1>();
      part_place().wait_empty(shared.part_ring);
#pragma unroll
      for (int r = 0; r < 8; ++r)
        shared.part[stage].x[group][r][tile::group_thread()] =
            make_float4(dq.x[4 * r], dq.x[4 * r + 1], dq.x[4 * r + 2], dq.x[4 * r + 3]);
      send(part_place());
      tile::wait_products<0>();
      place.release(shared.q_ring);
      place.next();
    }
    if (any) {
      key_place.release(shared.k_ring);
      key_place.release(shared.v_ring);
      key_place.next();
    }
    tile::RingPlace<2> last = part_place();
    send_keys(last, dv);
    dk.scale(p.scale);
    last.next();
    send_keys(last, dk);
    jobs.release(shared.jobs);
  }
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    hopper_backward(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Element, kWidth>*>(memory);
  constexpr int kConsumerWarps = 4 * kBackwardGroups;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.d_o, &p.dk_out.map, &p.dv_out.map})
      ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, kConsumerWarps + 3);
    shared.q_ring.init(1, kConsumerWarps);
    shared.do_ring.init(1, kConsumerWarps);
    shared.part_ring.init(kConsumerWarps, 1);
    shared.k_ring.init(1, kConsumerWarps);
    shared.v_ring.init(1, kConsumerWarps);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init(&shared.want, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<kBackwardFeeder>();
    const int warp = tile::block_warp();
    if (warp == 0) {
      produce_backward<Element, kWidth>(shared, p);
    } else if (warp == 1) {
      schedule_backward<Element, kWidth>(shared, p);
    } else {
      write_parts<Element, kWidth>(shared, p, static_cast<std::uint32_t>(warp - 2));
    }
  } else {
    ptx::grow_registers<kBackwardConsumer>();
    consume_backward<Element, kWidth>(shared, p, warpgroup - 1);
  }
}

template <class Element, int kWidth>
void launch_hopper_backward(const BackwardParams& params, int blocks, CUstream_st* stream) {
  using Shared = BackwardShared<Element, kWidth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  static_assert(tile::registers_fit(kBackwardGroups, kBackwardFeeder, kBackwardConsumer));
  const std::int64_t sequences = params.documents.q ? params.documents.count : params.batch;
  const tile::Grid rows{sequences * params.heads * params.tiles_q, kRowThreads};
  if (rows.blocks > 0) {
    tile::launch(prepare_backward<Element, kWidth>, rows, stream, params);
  } else {
    tile::check(cudaMemsetAsync(params.next_job, 0, sizeof(*params.next_job), stream));
  }
  if (params.seq_k > 0)
    tile::launch(hopper_backward<Element, kWidth>, {blocks, kBackwardThreads, sizeof(Shared)},
                 stream, params);
  if (rows.blocks > 0)
    tile::launch(finish_backward<Element, kWidth>, rows, stream, params);
}

}  // namespace tilefold::attention
