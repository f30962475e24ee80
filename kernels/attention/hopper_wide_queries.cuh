// dQ at width 256: of hopper_backward.h.
//
// A job is one (document or batch, head, tile of 128 query rows). Block = one warpgroup that feeds
// and two that compute, 64 query rows each:
//
//   producer  Q and dO; then K and V tiles from the last visible key tile to the first
//   consumer  for each tile: dQ += dS K of the tile before, S = Q Kᵀ and dP = dO Vᵀ are queued; P
//             beside dP; dS = P (dP - D)
//
// dQ leaves through dO's tile: the next job's Q comes meanwhile.
#pragma once

#include "kernels/attention/document_loader.cuh"
#include "kernels/attention/hopper_query_jobs.cuh"
#include "kernels/attention/hopper_row_mask.cuh"
#include "kernels/attention/hopper_wide_keys.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

template <class Element>
struct WideQueriesShared {
  static constexpr int kKeys = BackwardTiles<kWide>::kKeys;
  using Rows = tile::SharedTile<Element, 64, kWide>;
  using Keys = tile::SharedTile<Element, kKeys, kWide>;

  Rows q[kWideGroups], d_o[kWideGroups];
  Keys k[2], v[1];
  QueryJob job[kQueryJobs];  // each sees some key
  tile::RingBarriers<kQueryJobs> jobs;
  tile::RingBarriers<2> k_ring;
  tile::RingBarriers<1> q_ring[kWideGroups], do_ring[kWideGroups], v_ring;
  std::uint64_t patch;  // a tile that the producer still has to clear the tail of
};

template <class Element>
__device__ void produce_wide_queries(WideQueriesShared<Element>& shared, const BackwardParams& p) {
  using Shared = WideQueriesShared<Element>;
  const bool leader = tile::lane() == 0;
  DocumentLoader loader{p.documents.q != nullptr, &shared.patch};
  tile::RingPlace<kQueryJobs> jobs;
  tile::RingPlace<2> k_place;  // V's place counts the same tiles, Q's the jobs
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const QueryJob& job = shared.job[jobs.stage()];
    if (job.tiles < 0) break;
    if (job.tiles <= 2) release_before(shared.jobs, jobs);
    int key = job.last_tile * Shared::kKeys;
    const auto load_k = [&] {
      k_place.wait_empty(shared.k_ring);
      loader.load(shared.k[k_place.stage()], &p.k, {job.at.k_begin + key, job.key_head, job.batch},
                  job.at.k_count - key, &shared.k_ring.full[k_place.stage()]);
    };
    const auto load_v = [&] {
      tile::RingPlace<1>{k_place.count}.wait_empty(shared.v_ring);
      loader.load(shared.v[0], &p.v, {job.at.k_begin + key, job.key_head, job.batch},
                  job.at.k_count - key, &shared.v_ring.full[0]);
      k_place.next();
      key -= Shared::kKeys;
    };
    load_k();
#pragma unroll 1
    for (int group = 0; group < kWideGroups; ++group) {
      tile::RingPlace<1>{jobs.count}.wait_empty(shared.q_ring[group]);
      if (!leader) continue;
      // Rows past a document have p = 0 by their offsets, and harm no other row.
      const tile::RowsAt rows{job.at.q_begin + job.row + 64 * group, job.head, job.batch};
      std::uint64_t* full = &shared.q_ring[group].full[0];
      ptx::mbarrier_arrive_expect(full, Shared::Rows::kBytes);
      tile::load_tile<64>(shared.q[group], &p.q, rows, full);
    }
    load_v();
#pragma unroll 1
    for (int group = 0; group < kWideGroups; ++group) {
      tile::RingPlace<1>{jobs.count}.wait_empty(shared.do_ring[group]);
      if (!leader) continue;
      const tile::RowsAt rows{job.at.q_begin + job.row + 64 * group, job.head, job.batch};
      std::uint64_t* full = &shared.do_ring[group].full[0];
      ptx::mbarrier_arrive_expect(full, Shared::Rows::kBytes);
      tile::load_tile<64>(shared.d_o[group], &p.d_o, rows, full);
    }
    for (int left = job.tiles - 1; left > 0; --left) {
      if (left == 2) release_before(shared.jobs, jobs);
      load_k();
      load_v();
    }
  }
}

// The statistics of a thread's two rows.
struct RowStats {
  float offset[2], d[2], shift[2];  // shift: the maximum where scores are huge
  bool huge;

  __device__ __forceinline__ void load(const BackwardParams& p, const QueryJob& job, int row) {
    constexpr int kRows = BackwardTiles<kWide>::kRows;
    static_assert(kRows == 64);
    const int tile = first_query_tile<kRows>(p, job.at, job.sequence) + row / kRows;
    const auto* stats = reinterpret_cast<const StepStats<kRows>*>(p.stats) +
                        query_tile(p, job.batch, job.head, tile);
    huge = stats->huge[0] != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile::first_row() + 8 * i;
      offset[i] = stats->offset[at];
      d[i] = stats->d[at];
      shift[i] = 0;
      if (huge && row + at < job.at.q_count) {
        const float m = p.m[(static_cast<std::int64_t>(job.batch) * p.heads + job.head) * p.seq_q +
                            job.at.q_begin + row + at];
        shift[i] = m == tile::negative_infinity() ? 0 : m;
      }
    }
  }

  // Scores times `unit` are natural.
  template <int kKeys>
  __device__ __forceinline__ void exponentials(tile::Fragment<kKeys>& s, float unit) const {
    const float c = unit * tile::kLog2e;
#pragma unroll
    for (int r = 0; r < s.kCount; ++r) {
      const int i = s.is_lower(r);
      s.x[r] = ptx::exp2(huge ? fmaf(s.x[r] * unit - shift[i], tile::kLog2e, -offset[i])
                              : fmaf(s.x[r], c, -offset[i]));
    }
  }

  template <int kKeys>
  __device__ __forceinline__ void gradients(const tile::Fragment<kKeys>& probabilities,
                                            tile::Fragment<kKeys>& dp) const {
#pragma unroll
    for (int r = 0; r < dp.kCount; ++r)
      dp.x[r] = probabilities.x[r] * (dp.x[r] - d[dp.is_lower(r)]);
  }

  // dS of capped scores t: times 1 - (t / cap)^2, with t from its probability.
  template <int kKeys>
  __device__ __forceinline__ void slopes(const tile::Fragment<kKeys>& probabilities,
                                         tile::Fragment<kKeys>& ds, float softcap) const {
    const float base = ptx::reciprocal(softcap), unit = tile::kLn2 * base;
#pragma unroll
    for (int r = 0; r < ds.kCount; ++r) {
      const int i = ds.is_lower(r);
      const float t =
          fmaf(ptx::log2(probabilities.x[r]) + offset[i], unit, huge ? shift[i] * base : 0.f);
      ds.x[r] = probabilities.x[r] > 0 ? ds.x[r] * (1 - t * t) : 0.f;
    }
  }
};

template <class Element>
__device__ void consume_wide_queries(WideQueriesShared<Element>& shared, const BackwardParams& p,
                                     int group) {
  using Shared = WideQueriesShared<Element>;
  constexpr int kKeys = Shared::kKeys;
  const int barrier = 1 + group;
  tile::RingPlace<kQueryJobs> jobs;
  std::uint32_t scored = 0;  // tiles whose scores are done; the last one's K is still in use
  tile::Fragment<kWide> dq;
  tile::Fragment<kKeys> s, dp;
  tile::Packed<kKeys> packed;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const QueryJob& job = shared.job[jobs.stage()];
    const int tiles = tile::uniform(job.tiles);
    if (tiles < 0) break;
    const Range seen{tile::uniform(job.seen[group].first), tile::uniform(job.seen[group].last)};
    const Range whole{tile::uniform(job.whole[group].first), tile::uniform(job.whole[group].last)};
    const int row = job.row + 64 * group;
    int n = tile::uniform(job.last_tile);
    const int end = n - tiles;
    const auto free_keys = [&] { tile::RingPlace<2>{scored - 1}.release(shared.k_ring); };
    const auto free_values = [&] { tile::RingPlace<1>{scored++}.release(shared.v_ring); };
    // A tile that only the other warpgroup's rows see.
    const auto pass = [&] {
      tile::RingPlace<2>{scored}.wait_full(shared.k_ring);
      tile::RingPlace<1>{scored}.wait_full(shared.v_ring);
      free_values();
      free_keys();
    };
    const tile::RingPlace<1> q_place{jobs.count};
    const auto score = [&] {
      const tile::RingPlace<2> place{scored};
      place.wait_full(shared.k_ring);
      tile::begin_products();
      tile::multiply_rows(s, shared.q[group], 0, shared.k[tile::uniform(place.stage())]);
      tile::end_group();
      q_place.wait_full(shared.do_ring[group]);
      tile::RingPlace<1>{scored}.wait_full(shared.v_ring);
      tile::begin_products();
      tile::multiply_rows(dp, shared.d_o[group], 0, shared.v[0]);
      tile::end_group();
    };
    const auto accumulate = [&] {
      tile::begin_products();
      tile::accumulate(dq, packed, shared.k[tile::uniform((scored - 1) % 2)]);
      tile::end_group();
    };

    for (; n > end && n > seen.last; --n) pass();
    q_place.wait_full(shared.q_ring[group]);
    if (seen.first <= seen.last) {
      RowStats stats;
      stats.load(p, job, row);
      dq.clear();
      const auto probabilities = [&] {
        if (p.softcap > 0) cap_scores(s, p.scale, p.softcap);
        if (n < whole.first || n > whole.last) mask_scores(s, job, whole, row, n);
        stats.exponentials(s, p.softcap > 0 ? 1.f : p.scale);
      };
      const auto gradients = [&] {
        stats.gradients(s, dp);
        if (p.softcap > 0) stats.slopes(s, dp, p.softcap);
        tile::pack<Element>(packed, dp);
      };
      score();
      tile::wait_products<1>();
      probabilities();
      tile::wait_products<0>();
      free_values();
      gradients();
      for (--n; n >= seen.first; --n) {
        accumulate();  // first: the tile after the next waits for K's place
        score();
        tile::wait_products<2>();
        free_keys();
        tile::wait_products<1>();
        probabilities();
        tile::wait_products<0>();
        free_values();
        gradients();
      }
      accumulate();
      tile::wait_products<0>();
      free_keys();
      q_place.release(shared.q_ring[group]);

      auto& out = shared.d_o[group];
      const int count = job.at.q_count - row;
      dq.scale(p.scale);
      tile::Packed<kWide> rounded;
      tile::pack<Element>(rounded, dq);
      tile::store(out, 0, rounded);
      ptx::fence_proxy_shared();
      tile::sync_warpgroup(barrier);
      if (p.documents.q == nullptr || count >= 64) {
        if (tile::group_thread() == 0) {
#pragma unroll 1
          for (int slab = 0; slab < out.kSlabs; ++slab)
            ptx::copy_tensor_to_global(&p.dq_out.map, out.bytes + slab * out.kSlabBytes,
                                       slab * tile::kSlabColumns, job.at.q_begin + row, job.head,
                                       job.batch);
          ptx::bulk_commit();
          ptx::bulk_wait_read<0>();
        }
      } else {
        // The copy engine would write into the next document.
        tile::copy_rows<tile::kWarpgroup>(
            p.dq_out.data + job.batch * p.dq_out.at.batch + job.head * p.dq_out.at.head +
                static_cast<std::int64_t>(job.at.q_begin + row) * p.dq_out.at.row,
            p.dq_out.at.row, out, count, p.d);
      }
      tile::sync_warpgroup(barrier);
    }
    for (; n > end; --n) pass();
    if (job.seen[group].first > job.seen[group].last) {
      q_place.wait_full(shared.do_ring[group]);
      q_place.release(shared.q_ring[group]);
    }
    q_place.release(shared.do_ring[group]);
    jobs.release(shared.jobs);
  }
  if (tile::group_thread() == 0) ptx::bulk_wait<0>();
}

template <class Element>
__global__ void __launch_bounds__(kWideThreads, 1)
    hopper_wide_queries(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<WideQueriesShared<Element>*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.d_o, &p.dq_out.map})
      ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, 4 * kWideGroups + 1);
    for (auto& ring : shared.q_ring) ring.init(1, 4);
    for (auto& ring : shared.do_ring) ring.init(1, 4);
    shared.k_ring.init(1, 4 * kWideGroups);
    shared.v_ring.init(1, 4 * kWideGroups);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::wait_for_last();
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<kWideFeeder>();
    if (tile::block_warp() == 0) produce_wide_queries<Element>(shared, p);
    if (tile::block_warp() == 1)
      schedule_queries<BackwardTiles<kWide>::kKeys>(shared, p.queries, 64 * kWideGroups, false);
  } else {
    ptx::grow_registers<kWideConsumer>();
    consume_wide_queries<Element>(shared, p, warpgroup - 1);
  }
}

template <class Element>
void launch_hopper_wide_backward(const BackwardParams& params, int blocks, CUstream_st* stream) {
  constexpr std::size_t kKeysBytes = sizeof(WideKeysShared<Element>),
                        kQueriesBytes = sizeof(WideQueriesShared<Element>);
  static_assert(kKeysBytes <= 227 << 10 && kQueriesBytes <= 227 << 10);
  static_assert(tile::registers_fit(kWideGroups, kWideFeeder, kWideConsumer));
  const std::int64_t sequences = params.documents.q ? params.documents.count : params.batch;
  const tile::Grid rows{sequences * params.heads * params.tiles_q, kRowThreads};
  if (rows.blocks > 0) {
    tile::launch(prepare_backward<Element, kWide>, rows, stream, params);
  } else {
    tile::check(cudaMemsetAsync(params.next_job, 0, 2 * sizeof(*params.next_job), stream));
  }
  if (params.seq_k == 0) return;
  const bool early = begins_early(params, blocks);
  tile::launch(hopper_wide_keys<Element>, {blocks, kWideThreads, kKeysBytes, 1, early}, stream,
               params);
  if (rows.blocks > 0)
    tile::launch(hopper_wide_queries<Element>, {blocks, kWideThreads, kQueriesBytes, 1, early},
                 stream, params);
}

}  // namespace tilefold::attention
