// The body of hopper_backward.h: the kernel of the gradients.
//
// A job is one (document or batch, key head, tile of keys). A step is one query tile, of one of the
// group's heads, that sees the keys. Block = one warpgroup that feeds and two consumer warpgroups
// of 64 keys each:
//
//   scheduler  which job is next, one ahead; dV and dK of the one before to global memory
//   producer   Q, row statistics and dO of each step; V and K behind the first
//   consumer   Sᵀ = K Qᵀ and dPᵀ = V dOᵀ; P; dS = P (dP - D); dS to shared memory;
//              dV += P dO, dQ = dS K (both warpgroups' keys, half of the result each), dK += dS Q;
//              dQ to shared memory; after the last step dV and dK to shared memory, where that
//              step's dS, Q and dO were: nothing there waits for parts of dQ, and V and K of the
//              next job come while the last products run
//   writers    two warps, every other part each: parts of dQ to global memory when it is their turn
//
// Scores are computed transposed, so that P and dS are left operands without leaving registers.
//
// Order: the key tiles that see a query tile add their parts of dQ one after the other; `turn`
// counts them. A block waits only for jobs with smaller numbers, which were taken before its own.
// Two orders:
//   down   keys from the last tile to the first, queries from the first to the last: under a causal
//          mask each key tile begins two or more steps behind the one that it waits for
//   up     keys from the first tile to the last, queries from the last to the first: the longest
//          jobs come first, so that all blocks end together; also where all key tiles see all
//          queries
//
// longer than 450 lines because the roles of one kernel's warps are read side by side.
#pragma once

#include "kernels/attention/hopper_backward_feed.cuh"
#include "kernels/tile/product.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
__device__ void consume_backward(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                                 int group) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  constexpr int kAll = 1, kAllThreads = kBackwardGroups * tile::kWarpgroup;  // named barrier
  const int own = 64 * group;  // first of the warpgroup's key rows
  // The half of dQ this warpgroup makes: rows at width 64, columns at width 128.
  const int dq_row = kRows > 64 ? own : 0, dq_column = kRows > 64 ? 0 : own;

  tile::RingPlace<Shared::kJobs> jobs;
  tile::RingPlace<2> place;
  tile::Fragment<kWidth> dk, dv;
  // This step's part of dQ, to the writers.
  const auto send_part = [&](const tile::Fragment<64>& dq, std::uint32_t stage) {
    place.wait_empty(shared.part_ring);
#pragma unroll
    for (int r = 0; r < 8; ++r)
      shared.part[stage].x[group][tile::group_thread() / 32][r][tile::lane()] =
          make_float4(dq.x[4 * r], dq.x[4 * r + 1], dq.x[4 * r + 2], dq.x[4 * r + 3]);
    ptx::fence_proxy_shared();
    __syncwarp();
    if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.part_ring.full[place.stage()]);
  };
  const auto send = [&](typename Shared::Result& to, const tile::Fragment<kWidth>& from) {
    tile::Packed<kWidth> packed;
    tile::pack<Element>(packed, from);
    tile::store(to, 0, packed);
  };

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    dk.clear();
    dv.clear();
    StepPlace at(job, p.group);
    const tile::RingPlace<1> key_place{jobs.count};
    const auto free_keys = [&] { key_place.release(shared.k_ring); };
    const auto free_values = [&] { key_place.release(shared.v_ring); };
    key_place.wait_full(shared.k_ring);
    key_place.wait_full(shared.v_ring);
    const tile::RingPlace<2> results{jobs.count};
    if (!at.more()) {
      free_keys();
      free_values();
      Shared::results_before(results).wait_empty(shared.results);
    }
    bool first = true;
    for (; at.more(); at.next(job, p.group)) {
      const bool last = at.left == 1;
      tile::Fragment<kRows> s, dp;
      tile::Packed<kRows> packed_p, packed_ds;
      tile::Fragment<64> dq;
      const std::uint32_t stage = tile::uniform(place.stage());
      const auto& q = shared.q[stage];
      const auto& d_o = shared.d_o[stage];
      auto& ds = shared.ds[stage];
      const auto& stats = shared.stats[stage];
      const Step<kRows> step{p, job, stats, at.head, at.tile, job.key + own};

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
      if (last) free_values();
      step.gradients(s, dp);
      if (p.softcap > 0) step.slopes(s, dp, huge);
      tile::pack<Element>(packed_ds, dp);
      if constexpr (!Shared::kValuesApart) {
        if (first) Shared::results_before(results).wait_empty(shared.results);
        first = false;
      }
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
      if (!last) place.release(shared.do_ring);
      tile::wait_products<1>();
      if (last) free_keys();
      send_part(dq, stage);
      tile::wait_products<0>();
      if (!last) place.release(shared.q_ring);
      place.next();
    }
    // Nobody reads dS, Q and dO of the last step any more.
    ptx::named_barrier_sync(kAll, kAllThreads);
    const std::uint32_t stage = (place.count - 1) % 2;
    send(shared.dv(group, stage), dv);
    if (job.count > 0) {
      dk.scale(p.scale);
      send(shared.dk(group, stage), dk);
    }
    if (threadIdx.x == tile::kWarpgroup) shared.last_stage[results.stage()] = stage;
    ptx::fence_proxy_shared();
    __syncwarp();
    if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.results.full[results.stage()]);
    // Without a step nothing else keeps the next job from writing there.
    if (job.count == 0) tile::RingPlace<2>{jobs.count + 2}.wait_empty(shared.results);
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
    for (const CUtensorMap* map :
         {&p.q, &p.k, &p.v, &p.d_o, &p.dq_out.map, &p.dk_out.map, &p.dv_out.map})
      ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, kConsumerWarps + 3);
    shared.q_ring.init(1, kConsumerWarps);
    shared.do_ring.init(1, kConsumerWarps);
    shared.part_ring.init(kConsumerWarps, 1);
    shared.k_ring.init(1, kConsumerWarps);
    shared.v_ring.init(1, kConsumerWarps);
    shared.results.init(kConsumerWarps, 1);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init(&shared.want, 1);
    for (std::uint64_t& sum : shared.sum) ptx::mbarrier_init(&sum, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::wait_for_last();
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<kBackwardFeeder>();
    const int warp = tile::block_warp();
    if (warp == 0) {
      produce_backward<Element, kWidth>(shared, p);
    } else if (warp == 1) {
      schedule_keys<BackwardTiles<kWidth>>(shared, p, [&](const KeyJob& job, std::uint32_t index) {
        write_results(shared, p, job, index);
      });
      if (tile::lane() == 0) ptx::bulk_wait<0>();
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
    tile::launch(hopper_backward<Element, kWidth>,
                 {blocks, kBackwardThreads, sizeof(Shared), 1, begins_early(params, blocks)},
                 stream, params);
}

}  // namespace tilefold::attention
