// The body of hopper_backward.h: the kernel of the gradients.
//
// A job is one (document or batch, key head, tile of keys). A step is one query tile of one of the
// group's heads, from the last that sees the keys to the first. Block = one warpgroup that feeds and
// two consumer warpgroups of 64 keys each:
//
//   producer   K, V; then Q, row statistics and dO of each step
//   writers    two warps, every other step each: dQ parts to global memory when it is their turn
//   scheduler  which job is next, one ahead
//   consumer   queue Sᵀ = K Qᵀ and dPᵀ = V dOᵀ; P; dS = P (dP - D); dS to shared memory;
//              queue dV += P dO, dQ = dS K (both warpgroups' keys, half of the result each) and
//              dK += dS Q; dQ to shared memory
//
// Scores are computed transposed, so that P and dS are left operands without leaving registers.
//
// Order: the key tiles that see a query tile add their parts of dQ from the first to the last; `turn`
// counts them. A block waits only for jobs with smaller numbers, which were taken before its own.
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
constexpr int kBackwardFeeder = 40, kBackwardConsumer = 232;  // registers a thread
constexpr int kBackwardThreads = (kBackwardGroups + 1) * tile::kWarpgroup;

struct BackwardJob {
  Extent at;
  int key_head, batch;
  int key;           // first key, in the document; -1: no more jobs
  int tile;          // key / kKeys
  int first, count;  // query tiles
  Range whole;       // query tiles that need no mask
  int tile_base;     // where the document's query tiles start
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
  struct Part {
    float4 x[kBackwardGroups][8][tile::kWarpgroup];
  };

  Keys k, v;
  Rows q[2], d_o[2];
  Scores ds[2];
  Part dq[2];
  Stats stats[2];
  BackwardJob job[2];
  tile::RingBarriers<2> jobs, q_ring, do_ring, dq_ring;
  tile::RingBarriers<1> k_ring, v_ring;
  std::uint64_t patch;
};

template <int kRows, int kKeys>
__device__ inline BackwardJob make_backward_job(const BackwardParams& p, std::int64_t index) {
  BackwardJob job;
  const std::int64_t all =
      static_cast<std::int64_t>(p.documents.q ? p.documents.count : p.batch) * p.key_heads;
  if (index >= all * p.tiles_k) {
    job.key = -1;
    job.at = {0, 0, 0, 0};
    return job;
  }
  const std::int64_t section = index / (p.section * p.tiles_k);
  const std::int64_t within = index - section * p.section * p.tiles_k;
  const std::int64_t pairs = least(p.section, all - section * p.section);
  const std::int64_t pair = section * p.section + within % pairs;
  const auto sequence = static_cast<int>(pair / p.key_heads);
  const int document = p.documents.q ? sequence : 0;
  job.key_head = static_cast<int>(pair % p.key_heads);
  job.batch = p.documents.q ? 0 : sequence;
  job.at = extent_of(p.documents, document, p.seq_q, p.seq_k);
  job.tile = static_cast<int>(within / pairs);
  job.key = job.tile * kKeys;
  job.tile_base = first_query_tile<kRows>(p, job.at, document);
  const Range seeing = queries_seeing(job.at, p.window, job.key, kKeys);
  const Range seeing_all = queries_seeing_all(job.at, p.window, job.key, kKeys);
  job.first = seeing.first / kRows;
  job.count = seeing.last < seeing.first ? 0 : seeing.last / kRows - job.first + 1;
  // The last query tile may end beyond the document: its tail has p = 0 by its offsets.
  const bool to_end = seeing_all.last == job.at.q_count - 1;
  job.whole = {(seeing_all.first + kRows - 1) / kRows,
               to_end ? seeing_all.last / kRows : (seeing_all.last + 1) / kRows - 1};
  return job;
}

template <class Element, int kWidth>
__device__ void schedule_backward(BackwardShared<Element, kWidth>& shared,
                                  const BackwardParams& p) {
  using Tiles = BackwardTiles<kWidth>;
  tile::RingPlace<2> jobs;
  bool more = true;
  while (more) {
    jobs.wait_empty(shared.jobs);
    if (tile::lane() == 0) {
      BackwardJob job;
      do {  // a short document has fewer tiles than the longest
        job = make_backward_job<Tiles::kRows, Tiles::kKeys>(p, atomicAdd(p.next_job, 1u));
      } while (job.key >= job.at.k_count);
      shared.job[jobs.stage()] = job;
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
      more = job.key >= 0;
    }
    more = __shfl_sync(0xffffffffu, more, 0);
    jobs.next();
  }
}

template <class Element, int kWidth>
__device__ void produce_backward(BackwardShared<Element, kWidth>& shared,
                                 const BackwardParams& p) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  const bool leader = tile::lane() == 0;
  tile::RingPlace<2> jobs, place;
  tile::RingPlace<1> key_place;
  std::uint32_t patches = 0;

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    // Rows past a packed document belong to others and may hold anything: they become zero. The
    // caller's barrier then counts `more` bytes, or one arrival if there are none.
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
    const auto load_q = [&](int head, int tile) {
      place.wait_empty(shared.q_ring);
      std::uint64_t* full = &shared.q_ring.full[place.stage()];
      constexpr auto kStatBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Stats));
      load(shared.q[place.stage()], &p.q, job.at.q_begin + tile * kRows,
           job.at.q_count - tile * kRows, head, full, kStatBytes);
      if (leader)
        ptx::copy_bytes_to_shared(
            &shared.stats[place.stage()],
            p.stats + query_tile(p, job.batch, head, job.tile_base + tile) * (2 * kRows + 4),
            kStatBytes, full);
    };
    const auto load_do = [&](int head, int tile) {
      place.wait_empty(shared.do_ring);
      load(shared.d_o[place.stage()], &p.d_o, job.at.q_begin + tile * kRows,
           job.at.q_count - tile * kRows, head, &shared.do_ring.full[place.stage()], 0);
    };
    const int keys = job.at.k_count - job.key;
    key_place.wait_empty(shared.k_ring);
    load(shared.k, &p.k, job.at.k_begin + job.key, keys, job.key_head, &shared.k_ring.full[0], 0);
    const int head = job.key_head * p.group;
    if (job.count > 0) load_q(head, job.first + job.count - 1);
    key_place.wait_empty(shared.v_ring);
    load(shared.v, &p.v, job.at.k_begin + job.key, keys, job.key_head, &shared.v_ring.full[0], 0);
    key_place.next();
    for (int h = 0; h < p.group; ++h) {
      for (int i = job.count - 1; i >= 0; --i) {
        if (h > 0 || i < job.count - 1) load_q(head + h, job.first + i);
        load_do(head + h, job.first + i);
        place.next();
      }
    }
    __syncwarp();
    jobs.release(shared.jobs);
  }
}

// One of two warps: every other step's part of dQ.
template <class Element, int kWidth>
__device__ void write_dq(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                         int stage) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows, kKeys = Shared::kKeys;
  tile::RingPlace<2> jobs;
  tile::RingPlace<2> place;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    for (int h = 0; h < p.group; ++h) {
      const int head = job.key_head * p.group + h;
      for (int i = job.count - 1; i >= 0; --i, place.next()) {
        if (place.stage() != stage || tile::lane() != 0) continue;
        const int tile = job.first + i;
        const std::int64_t at = query_tile(p, job.batch, head, job.tile_base + tile);
        std::uint32_t rank = 1;
        if (p.ordered) {
          rank = static_cast<std::uint32_t>(
              job.tile - keys_seen(job.at, p.window, tile * kRows, kRows).first / kKeys);
          while (ptx::load_acquire(p.turn + at) != rank) {
          }
          ptx::fence_proxy_global();
        }
        place.wait_full(shared.dq_ring);
        float* to = p.dq_sum + at * (kRows * kWidth);
        const auto* from = reinterpret_cast<const float*>(&shared.dq[stage]);
        constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Part));
        if (rank == 0) {
          ptx::copy_bytes_to_global(to, from, kBytes);
        } else {
          ptx::add_floats_to_global(to, from, kBytes);
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        ptx::mbarrier_arrive(&shared.dq_ring.empty[stage]);
        if (p.ordered) {
          ptx::bulk_wait<0>();
          ptx::fence_proxy_global();
          ptx::store_release(p.turn + at, rank + 1);
        }
      }
    }
    __syncwarp();
    jobs.release(shared.jobs);
  }
  ptx::bulk_wait<0>();
}

// What one step knows of its scores: Sᵀ in raw units becomes P, dPᵀ becomes dS.
template <class Shared>
struct Step {
  const BackwardParams& p;
  const BackwardJob& job;
  const typename Shared::Stats& stats;
  int head, tile;  // of the queries
  int key;         // first of the warpgroup, in the document
  static constexpr int kRows = Shared::kRows;
  using F = tile::Fragment<kRows>;

  // Both of a thread's column pair, for columns 8 g and on.
  __device__ __forceinline__ float2 at(const float* row, int g) const {
    return reinterpret_cast<const float2*>(row + tile::first_column())[4 * g];
  }

  // The maximum of a query, by its column from the thread's first; 0 where no key is seen.
  __device__ __forceinline__ float maximum(int column) const {
    const float* m = p.m + (static_cast<std::int64_t>(job.batch) * p.heads + head) * p.seq_q +
                     job.at.q_begin + tile * kRows;
    const float top =
        m[min(tile::first_column() + column, job.at.q_count - tile * kRows - 1)];
    return top == tile::negative_infinity() ? 0 : top;
  }

  __device__ __forceinline__ void mask(F& s) const {
    if (tile >= job.whole.first && tile <= job.whole.last) return;
    const std::int64_t j = key + tile::first_row();
    const Range upper = rows_of_key(job.at, p.window, j, tile * kRows, kRows);
    const Range lower = rows_of_key(job.at, p.window, j + 8, tile * kRows, kRows);
#pragma unroll
    for (int r = 0; r < F::kCount; ++r) {
      const int column = tile::first_column() + F::column(r);
      const Range& seeing = F::is_lower(r) ? lower : upper;
      if (column < seeing.first || column > seeing.last) s.x[r] = tile::negative_infinity();
    }
  }

  // Scores times `unit` are natural.
  __device__ __forceinline__ void exponentials(F& s, float unit) const {
    if (stats.huge[0] == 0) {
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
  __device__ __forceinline__ void slopes(const F& probabilities, F& ds) const {
    const float base = 1 / p.softcap, unit = tile::kLn2 / p.softcap;
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 offset = at(stats.offset, g);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float shift = stats.huge[0] == 0 ? 0.f : maximum(8 * g + odd) * base;
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

// This warpgroup's 64 rows of dK and dV, from K's and V's tiles to global memory.
template <class Element, int kWidth>
__device__ __forceinline__ void store_keys(BackwardShared<Element, kWidth>& shared,
                                           const BackwardParams& p, const BackwardJob& job,
                                           int own, int barrier) {
  using Keys = typename BackwardShared<Element, kWidth>::Keys;
  const int row = job.at.k_begin + job.key + own;
  const int count = job.at.k_count - job.key - own;
  if (p.documents.q == nullptr || count >= 64) {
    if (tile::group_thread() != 0) return;
    for (int slab = 0; slab < Keys::kSlabs; ++slab) {
      const std::uint32_t at = slab * Keys::kSlabBytes + own * 128;
      ptx::copy_tensor_to_global(&p.dv, shared.v.bytes + at, slab * tile::kSlabColumns,
                                 row, job.key_head, job.batch);
      ptx::copy_tensor_to_global(&p.dk, shared.k.bytes + at, slab * tile::kSlabColumns,
                                 row, job.key_head, job.batch);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  } else {
    const auto to = [&](std::uint16_t* data, const BackwardParams::Strides& at) {
      return data + job.batch * at.batch + job.key_head * at.head +
             static_cast<std::int64_t>(row) * at.row;
    };
    tile::copy_rows(to(p.dv_data, p.dv_at), p.dv_at.row, shared.v, own, count, p.d);
    tile::copy_rows(to(p.dk_data, p.dk_at), p.dk_at.row, shared.k, own, count, p.d);
    tile::sync_warpgroup(barrier);
  }
}

template <class Element, int kWidth>
__device__ void consume_backward(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                                 int group) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  constexpr int kAll = 1, kAllThreads = kBackwardGroups * tile::kWarpgroup;  // named barrier
  const int own_barrier = kAll + 1 + group;
  const int own = 64 * group;  // first of the warpgroup's key rows
  // The half of dQ this warpgroup makes: rows at width 64, columns at width 128.
  const int dq_row = kRows > 64 ? own : 0, dq_column = kRows > 64 ? 0 : own;
  tile::RingPlace<2> jobs, place;
  tile::Fragment<kWidth> dk, dv;

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const BackwardJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    dk.clear();
    dv.clear();
    const tile::RingPlace<1> key_place{jobs.count};
    key_place.wait_full(shared.k_ring);
    key_place.wait_full(shared.v_ring);
    for (int h = 0; h < p.group; ++h) {
      for (int i = job.count - 1; i >= 0; --i) {
        tile::Fragment<kRows> s, dp;
        tile::Packed<kRows> packed_p, packed_ds;
        tile::Fragment<64> dq;
        const auto& q = shared.q[place.stage()];
        const auto& d_o = shared.d_o[place.stage()];
        const auto& stats = shared.stats[place.stage()];
        auto& ds = shared.ds[place.stage()];
        const Step<Shared> step{p,         job,           stats, job.key_head * p.group + h,
                                job.first + i, job.key + own};

        place.wait_full(shared.q_ring);
        tile::begin_products();
        tile::multiply_rows(s, shared.k, own, q);
        tile::end_group();
        place.wait_full(shared.do_ring);
        tile::begin_products();
        tile::multiply_rows(dp, shared.v, own, d_o);
        tile::end_group();

        tile::wait_products<1>();
        if (p.softcap > 0) step.cap(s);
        step.mask(s);
        step.exponentials(s, p.softcap > 0 ? 1.f : p.scale);
        tile::wait_products<0>();
        step.gradients(s, dp);
        if (p.softcap > 0) step.slopes(s, dp);
        tile::pack<Element>(packed_p, s);
        tile::pack<Element>(packed_ds, dp);
        tile::store(ds, own, packed_ds);
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
        place.wait_empty(shared.dq_ring);
#pragma unroll
        for (int r = 0; r < 8; ++r)
          shared.dq[place.stage()].x[group][r][tile::group_thread()] =
              make_float4(dq.x[4 * r], dq.x[4 * r + 1], dq.x[4 * r + 2], dq.x[4 * r + 3]);
        ptx::fence_proxy_shared();
        __syncwarp();
        if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.dq_ring.full[place.stage()]);
        tile::wait_products<0>();
        place.release(shared.q_ring);
        place.next();
      }
    }

    // dV leaves through V's rows, which only this warpgroup reads; dK through K's, once both are done.
    tile::Packed<kWidth> packed;
    tile::pack<Element>(packed, dv);
    tile::store(shared.v, own, packed);
    dk.scale(p.scale);
    tile::pack<Element>(packed, dk);
    ptx::named_barrier_sync(kAll, kAllThreads);
    tile::store(shared.k, own, packed);
    ptx::fence_proxy_shared();
    tile::sync_warpgroup(own_barrier);
    store_keys(shared, p, job, own, own_barrier);
    if (tile::group_thread() == 0) {
      ptx::mbarrier_arrive(&shared.k_ring.empty[0]);
      ptx::mbarrier_arrive(&shared.v_ring.empty[0]);
    }
    __syncwarp();
    jobs.release(shared.jobs);
  }
  if (tile::group_thread() == 0) ptx::bulk_wait<0>();
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    hopper_backward(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Element, kWidth>*>(memory);
  constexpr int kConsumerWarps = 4 * kBackwardGroups;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.d_o, &p.dk, &p.dv})
      ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, kConsumerWarps + 3);
    shared.q_ring.init(1, kConsumerWarps);
    shared.do_ring.init(1, kConsumerWarps);
    shared.dq_ring.init(kConsumerWarps, 1);
    shared.k_ring.init(1, kBackwardGroups);
    shared.v_ring.init(1, kBackwardGroups);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<kBackwardFeeder>();
    switch (tile::block_warp()) {
      case 0: produce_backward<Element, kWidth>(shared, p); break;
      case 1: write_dq<Element, kWidth>(shared, p, 0); break;
      case 2: write_dq<Element, kWidth>(shared, p, 1); break;
      default: schedule_backward<Element, kWidth>(shared, p);
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
