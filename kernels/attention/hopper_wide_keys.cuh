// dK and dV at width 256: of hopper_backward.h.
//
// A job is one (document or batch, key head, tile of 64 keys); a step is one query tile, of one of
// the group's heads, that sees the keys. Block = one warpgroup that feeds and two that compute,
// each with one of the results, 64 x 256, in registers:
//
//   producer   K, V; then Q with its statistics and dO of each step
//   values     Sᵀ = K Qᵀ; P, float32, to shared memory; dV += P dO beside the next step's scores
//   keys       dPᵀ = V dOᵀ; dS = P (dP - D); dK += dS Q
//   writers    two warps: dV, dK to global memory
//
// Results leave through the last step's tiles, dV through dO's, dK through Q's: the next job's K
// and V come as soon as the last scores are made.
#pragma once

#include "kernels/attention/document_loader.cuh"
#include "kernels/attention/hopper_key_jobs.cuh"
#include "kernels/attention/hopper_step.cuh"
#include "kernels/tile/product.cuh"

namespace tilefold::attention {

constexpr int kWide = 256;
constexpr int kWideGroups = 2, kWideFeeder = 24, kWideConsumer = 240;  // registers a thread
constexpr int kWideThreads = (kWideGroups + 1) * tile::kWarpgroup;

constexpr int kLastScores = 1, kValues = 2, kKeysDone = 3;  // named barriers of hopper_wide_keys

template <class Element>
struct WideKeysShared {
  static constexpr int kRows = BackwardTiles<kWide>::kRows;
  static constexpr int kKeys = BackwardTiles<kWide>::kKeys;
  using Rows = tile::SharedTile<Element, kRows, kWide>;
  using Keys = tile::SharedTile<Element, kKeys, kWide>;
  // P of a step as fragments: register / 4, thread.
  struct Probabilities {
    float4 x[kRows / 8][tile::kWarpgroup];
  };

  Keys k, v;
  Rows q[2], d_o[2];
  Probabilities p[2];
  StepStats<kRows> stats[2];
  static constexpr int kJobs = 2;
  KeyJob job[kJobs];
  tile::RingBarriers<2> jobs, q_ring, do_ring, p_ring;
  tile::RingBarriers<1> k_ring, v_ring;
  std::uint64_t patch;              // a tile that the producer still has to clear the tail of
  std::uint64_t want;               // the producer wants the next job
  std::uint64_t results[2][kJobs];  // dV, dK of a job are ready

  // Where dV (0) or dK lies on its way out. Of keys that no query sees there is no step.
  __device__ Keys& result(int which, bool empty, std::uint32_t stage) {
    static_assert(std::is_same_v<Keys, Rows>);
    if (empty) return which == 0 ? k : v;
    return which == 0 ? d_o[stage] : q[stage];
  }
};

template <class Element>
__device__ void produce_wide_keys(WideKeysShared<Element>& shared, const BackwardParams& p) {
  using Shared = WideKeysShared<Element>;
  constexpr int kRows = Shared::kRows;
  constexpr auto kStatBytes = static_cast<std::uint32_t>(sizeof(StepStats<kRows>));
  const bool leader = tile::lane() == 0;
  DocumentLoader loader{p.documents.q != nullptr, &shared.patch};
  tile::RingPlace<2> jobs, place;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    const tile::RingPlace<1> key_place{jobs.count};
    const tile::RowsAt keys{job.at.k_begin + job.key, job.key_head, job.batch};
    const int key_count = job.at.k_count - job.key;
    key_place.wait_empty(shared.k_ring);
    loader.load(shared.k, &p.k, keys, key_count, &shared.k_ring.full[0]);
    StepPlace step(job, p.group);
    constexpr int kAhead = 2;  // steps for which the next job is made
    if (step.left < kAhead && leader) ptx::mbarrier_arrive(&shared.want);
    const auto load_q = [&] {
      const int rows = job.at.q_count - step.tile * kRows;
      const tile::RowsAt at{job.at.q_begin + step.tile * kRows, step.head, job.batch};
      place.wait_empty(shared.q_ring);
      std::uint64_t* full = &shared.q_ring.full[place.stage()];
      loader.load(shared.q[place.stage()], &p.q, at, rows, full, kStatBytes);
      if (leader)
        ptx::copy_bytes_to_shared(
            &shared.stats[place.stage()],
            p.stats + static_cast<std::int64_t>(
                          query_tile(p, job.batch, step.head, job.tile_base + step.tile)) *
                          (2 * kRows + 4),
            kStatBytes, full);
    };
    const auto load_do = [&] {
      const int rows = job.at.q_count - step.tile * kRows;
      const tile::RowsAt at{job.at.q_begin + step.tile * kRows, step.head, job.batch};
      place.wait_empty(shared.do_ring);
      loader.load(shared.d_o[place.stage()], &p.d_o, at, rows, &shared.do_ring.full[place.stage()]);
    };
    if (step.more()) load_q();
    key_place.wait_empty(shared.v_ring);
    loader.load(shared.v, &p.v, keys, key_count, &shared.v_ring.full[0]);
    while (step.more()) {
      if (step.left == kAhead && leader) ptx::mbarrier_arrive(&shared.want);
      load_do();
      step.next(job, p.group);
      place.next();
      if (step.more()) load_q();
    }
    __syncwarp();
    tile::RingPlace<Shared::kJobs>{tile::anew(jobs.count)}.release(shared.jobs);
  }
}

// Puts a warpgroup's result where a writer takes it.
template <class Element, class Keys>
__device__ __forceinline__ void leave_wide_keys(Keys& out, const tile::Fragment<kWide>& from,
                                                std::uint64_t* full) {
  tile::Packed<kWide> packed;
  tile::pack<Element>(packed, from);
  tile::store(out, 0, packed);
  ptx::fence_proxy_shared();
  __syncwarp();
  if (tile::lane() == 0) ptx::mbarrier_arrive(full);
}

// One of two warps: dV (0) or dK of each job.
template <class Element>
__device__ void write_wide_keys(WideKeysShared<Element>& shared, const BackwardParams& p,
                                int which) {
  using Shared = WideKeysShared<Element>;
  tile::RingPlace<Shared::kJobs> jobs;
  const BackwardParams::Result& to = which == 0 ? p.dv_out : p.dk_out;
  std::uint32_t steps = 0;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    steps += static_cast<std::uint32_t>(job.count * p.group);
    ptx::mbarrier_wait(&shared.results[which][jobs.stage()], jobs.round());
    const std::uint32_t stage = (steps - 1) % 2;
    const bool empty = job.count == 0;
    auto& tile = shared.result(which, empty, stage);
    const int row = job.at.k_begin + job.key, count = job.at.k_count - job.key;
    if (p.documents.q == nullptr || count >= Shared::kKeys) {
      if (tile::lane() == 0) {
#pragma unroll 1
        for (int slab = 0; slab < tile.kSlabs; ++slab)
          ptx::copy_tensor_to_global(&to.map, tile.bytes + slab * tile.kSlabBytes,
                                     slab * tile::kSlabColumns, row, job.key_head, job.batch);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
    } else {
      // The copy engine would write into the next document.
      tile::copy_rows<32>(to.data + job.batch * to.at.batch + job.key_head * to.at.head +
                              static_cast<std::int64_t>(row) * to.at.row,
                          to.at.row, tile, count, p.d);
    }
    __syncwarp();
    if (tile::lane() == 0) {
      if (empty) {
        ptx::mbarrier_arrive(which == 0 ? &shared.k_ring.empty[0] : &shared.v_ring.empty[0], 4);
      } else if (which == 0) {
        ptx::mbarrier_arrive(&shared.do_ring.empty[stage], 4 * kWideGroups);
      } else {  // the warpgroup that makes P released Q itself
        ptx::mbarrier_arrive(&shared.q_ring.empty[stage], 4);
      }
    }
    jobs.release(shared.jobs);
  }
  if (tile::lane() == 0) ptx::bulk_wait<0>();
}

template <class Element>
__device__ void consume_wide_values(WideKeysShared<Element>& shared, const BackwardParams& p) {
  using Shared = WideKeysShared<Element>;
  constexpr int kRows = Shared::kRows;
  tile::RingPlace<2> jobs, place, do_place;
  tile::RingPlace<1> key_place;
  tile::Fragment<kWide> dv;
  tile::Fragment<kRows> s;
  tile::Packed<kRows> packed;
  for (;; jobs.next(), key_place.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    dv.clear();
    StepPlace at(job, p.group);
    key_place.wait_full(shared.k_ring);

    const auto score = [&] {
      place.wait_full(shared.q_ring);
      tile::begin_products();
      tile::multiply_rows(s, shared.k, 0, shared.q[tile::uniform(place.stage())]);
      tile::end_group();
    };
    const auto probabilities = [&] {
      const StepStats<kRows>& stats = shared.stats[tile::uniform(place.stage())];
      const Step<kRows> step{p, job, stats, at.head, at.tile, job.key};
      if (p.softcap > 0) step.cap(s);
      if (step.needs_mask()) step.mask(s);
      step.exponentials(s, p.softcap > 0 ? 1.f : p.scale, stats.huge[0] != 0);
      __syncwarp();  // statistics were read
      place.release(shared.q_ring);
      place.wait_empty(shared.p_ring);
      auto& to = shared.p[place.stage()];
#pragma unroll
      for (int r = 0; r < kRows / 8; ++r)
        to.x[r][tile::group_thread()] =
            make_float4(s.x[4 * r], s.x[4 * r + 1], s.x[4 * r + 2], s.x[4 * r + 3]);
      __syncwarp();
      if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.p_ring.full[place.stage()]);
      place.next();
    };
    const auto accumulate = [&] {
      do_place.wait_full(shared.do_ring);
      tile::begin_products();
      tile::accumulate(dv, packed, shared.d_o[tile::uniform(do_place.stage())]);
      tile::end_group();
    };
    const auto free_do = [&] {
      do_place.release(shared.do_ring);
      do_place.next();
    };

    if (at.more()) {
      score();
      tile::wait_products<0>();
      if (at.left == 1) key_place.release(shared.k_ring);
      probabilities();
      tile::pack<Element>(packed, s);
      for (at.next(job, p.group); at.more(); at.next(job, p.group)) {
        score();
        accumulate();
        tile::wait_products<1>();
        if (at.left == 1) key_place.release(shared.k_ring);
        probabilities();
        tile::wait_products<0>();
        free_do();
        tile::pack<Element>(packed, s);
      }
      accumulate();
      tile::wait_products<0>();
      do_place.next();
      // The other warpgroup has its last scores too.
      ptx::named_barrier_sync(kLastScores, kWideGroups * tile::kWarpgroup);
    } else {
      tile::sync_warpgroup(kValues);
    }
    leave_wide_keys<Element>(shared.result(0, job.count == 0, (do_place.count - 1) % 2), dv,
                             &shared.results[0][jobs.stage()]);
    jobs.release(shared.jobs);
  }
}

template <class Element>
__device__ void consume_wide_keys(WideKeysShared<Element>& shared, const BackwardParams& p) {
  using Shared = WideKeysShared<Element>;
  constexpr int kRows = Shared::kRows;
  tile::RingPlace<2> jobs, place, do_place;
  tile::RingPlace<1> key_place;
  tile::Fragment<kWide> dk;
  tile::Fragment<kRows> dp;
  tile::Packed<kRows> packed;
  for (;; jobs.next(), key_place.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    dk.clear();
    StepPlace at(job, p.group);
    key_place.wait_full(shared.v_ring);

    const auto score = [&] {
      do_place.wait_full(shared.do_ring);
      tile::begin_products();
      tile::multiply_rows(dp, shared.v, 0, shared.d_o[tile::uniform(do_place.stage())]);
      tile::end_group();
    };
    const auto gradients = [&] {
      const bool last = at.left == 1;
      if (last) {
        key_place.release(shared.v_ring);
      } else {
        do_place.release(shared.do_ring);
      }
      do_place.next();
      const StepStats<kRows>& stats = shared.stats[tile::uniform(place.stage())];
      const Step<kRows> step{p, job, stats, at.head, at.tile, job.key};
      place.wait_full(shared.q_ring);
      place.wait_full(shared.p_ring);
      if (last) ptx::named_barrier_arrive(kLastScores, kWideGroups * tile::kWarpgroup);
      const auto& from = shared.p[place.stage()];
      tile::Fragment<kRows> probabilities;
#pragma unroll
      for (int r = 0; r < kRows / 8; ++r) {
        const float4 x = from.x[r][tile::group_thread()];
        probabilities.x[4 * r] = x.x;
        probabilities.x[4 * r + 1] = x.y;
        probabilities.x[4 * r + 2] = x.z;
        probabilities.x[4 * r + 3] = x.w;
      }
      __syncwarp();
      place.release(shared.p_ring);
      step.gradients(probabilities, dp);
      if (p.softcap > 0) step.slopes(probabilities, dp, stats.huge[0] != 0);
      tile::pack<Element>(packed, dp);
    };
    const auto accumulate = [&] {
      tile::begin_products();
      tile::accumulate(dk, packed, shared.q[tile::uniform(place.stage())]);
      tile::end_group();
    };
    const auto free_q = [&] {
      place.release(shared.q_ring);
      place.next();
    };

    if (at.more()) {
      score();
      tile::wait_products<0>();
      gradients();
      for (at.next(job, p.group); at.more(); at.next(job, p.group)) {
        accumulate();  // first: Q's next tile waits for it
        score();
        tile::wait_products<1>();
        free_q();
        tile::wait_products<0>();
        gradients();
      }
      accumulate();
      tile::wait_products<0>();
      place.next();
    }
    tile::sync_warpgroup(kKeysDone);
    dk.scale(p.scale);
    leave_wide_keys<Element>(shared.result(1, job.count == 0, (place.count - 1) % 2), dk,
                             &shared.results[1][jobs.stage()]);
    jobs.release(shared.jobs);
  }
}

template <class Element>
__global__ void __launch_bounds__(kWideThreads, 1)
    hopper_wide_keys(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<WideKeysShared<Element>*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.d_o, &p.dk_out.map, &p.dv_out.map})
      ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, 4 * kWideGroups + 3);
    for (auto& which : shared.results)
      for (std::uint64_t& full : which) ptx::mbarrier_init(&full, 4);
    shared.q_ring.init(1, 4 * kWideGroups);
    shared.do_ring.init(1, 4 * kWideGroups);
    shared.p_ring.init(4, 4);
    shared.k_ring.init(1, 4);
    shared.v_ring.init(1, 4);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init(&shared.want, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::wait_for_last();
  ptx::let_next_start();
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<kWideFeeder>();
    const int warp = tile::block_warp();
    if (warp == 0) {
      produce_wide_keys<Element>(shared, p);
    } else if (warp == 1) {
      schedule_keys<BackwardTiles<kWide>>(shared, p, [](const KeyJob&, std::uint32_t) {});
    } else {
      write_wide_keys<Element>(shared, p, warp - 2);
    }
  } else if (warpgroup == 1) {
    ptx::grow_registers<kWideConsumer>();
    consume_wide_values<Element>(shared, p);
  } else {
    ptx::grow_registers<kWideConsumer>();
    consume_wide_keys<Element>(shared, p);
  }
}

}  // namespace tilefold::attention
