// The body of hopper_forward.h.
//
// A job is one (document or batch, head, tile of query rows). Block = one warpgroup that feeds, of
// which two warps work, and kGroups consumer warpgroups of 64 query rows each:
//
//   scheduler  which job is next, shortly before the producer needs it
//   producer   Q; then K and V tiles from the last visible key tile to the first; at d 128 the next
//              job's Q and first K before the last V
//   consumer   S_0 = Q K_0ᵀ; softmax; then for each further tile
//                queue S_j = Q K_jᵀ and O += P_{j-1} V_{j-1}; softmax of S_j while the second runs;
//                O *= keep; P_j
//              O += P V beside the next job's S_0; O / l; m, l; O out through shared memory
//
// Consumers queue their products in turn, so that one's softmax runs beside another's products.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/document_loader.cuh"
#include "kernels/attention/hopper_forward.h"
#include "kernels/attention/hopper_row_mask.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/tile/ring.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct ForwardShared {
  using Tiles = ForwardTiles<kWidth>;
  // O leaves through a tile of up to 128 columns, in as many parts.
  static constexpr int kOutColumns = kWidth < 128 ? kWidth : 128;
  using Rows = tile::SharedTile<Element, 64, kWidth>;
  using Keys = tile::SharedTile<Element, Tiles::kKeys, kWidth>;
  using Out = tile::SharedTile<Element, 64, kOutColumns>;

  Rows q[Tiles::kGroups][Tiles::kQueryStages];
  Keys k[Tiles::kStages];
  Keys v[Tiles::kStages];
  Out o[Tiles::kGroups];
  QueryJob job[kQueryJobs];
  tile::RingBarriers<kQueryJobs> jobs;
  tile::RingBarriers<Tiles::kQueryStages> q_ring[Tiles::kGroups];
  tile::RingBarriers<Tiles::kStages> k_ring, v_ring;
  std::uint64_t patch;  // a V tile that the producer still has to clear the tail of
};

// The warp that loads.
template <class Element, int kWidth>
__device__ void produce(ForwardShared<Element, kWidth>& shared, const ForwardParams& p) {
  using Tiles = ForwardTiles<kWidth>;
  using Shared = ForwardShared<Element, kWidth>;
  const bool leader = tile::lane() == 0;
  DocumentLoader values{p.jobs.documents.q != nullptr, &shared.patch};
  tile::RingPlace<kQueryJobs> jobs;
  tile::RingPlace<Tiles::kQueryStages> q_place;
  tile::RingPlace<Tiles::kStages> k_place, v_place;
  bool asked = false;  // for Q and the first K of this job, beside the one before
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const QueryJob& job = shared.job[jobs.stage()];
    const int tiles = job.tiles;
    if (tiles < 0) break;
    if (tiles <= Tiles::kStages) release_before(shared.jobs, jobs);
    const auto first_key = [](const QueryJob& of) {
      return of.at.k_begin + of.last_tile * Tiles::kKeys;
    };
    const auto load_q = [&](const QueryJob& of) {
      for (int group = 0; group < Tiles::kGroups; ++group) {
        q_place.wait_empty(shared.q_ring[group]);
        if (leader) {
          std::uint64_t* full = &shared.q_ring[group].full[q_place.stage()];
          ptx::mbarrier_arrive_expect(full, Shared::Rows::kBytes);
          tile::load_tile<64>(shared.q[group][q_place.stage()], &p.q,
                              {of.at.q_begin + of.row + 64 * group, of.head, of.batch}, full);
        }
      }
      q_place.next();
    };
    const auto load_k = [&](const QueryJob& of, int row) {
      k_place.wait_empty(shared.k_ring);
      if (leader) {
        std::uint64_t* full = &shared.k_ring.full[k_place.stage()];
        ptx::mbarrier_arrive_expect(full, Shared::Keys::kBytes);
        tile::load_tile<Tiles::kKeys>(shared.k[k_place.stage()], &p.k, {row, of.key_head, of.batch},
                                      full);
      }
      k_place.next();
    };
    const auto load_v = [&](int row) {
      v_place.wait_empty(shared.v_ring);
      values.load(shared.v[v_place.stage()], &p.v, {row, job.key_head, job.batch},
                  job.at.k_begin + job.at.k_count - row, &shared.v_ring.full[v_place.stage()]);
      v_place.next();
    };

    if (tiles > 0) {
      int row = first_key(job);
      if (!asked) {
        load_k(job, row);
        load_q(job);
      }
      asked = false;
      for (int left = tiles - 1; left > 0; --left, row -= Tiles::kKeys) {
        if (left == Tiles::kStages) release_before(shared.jobs, jobs);
        load_k(job, row - Tiles::kKeys);
        load_v(row);
        // Nobody else reads a tile of Q, so it comes from far: what the next job begins with is
        // asked for before this one's last V, which still has to wait for room.
        if (Tiles::kNextEarly && left == 1) {
          tile::RingPlace<kQueryJobs> after = jobs;
          after.next();
          after.wait_full(shared.jobs);
          const QueryJob& next = shared.job[after.stage()];
          asked = next.tiles > 0;
          if (asked) {
            load_q(next);
            load_k(next, first_key(next));
          }
        }
      }
      load_v(row);
    }
  }
}

// o / l, m and l to global memory; rows past the document are left alone.
template <class Element, int kWidth>
__device__ __forceinline__ void store_rows(ForwardShared<Element, kWidth>& shared,
                                           const ForwardParams& p, const QueryJob& job, int group,
                                           int barrier, const tile::LazyRowFold& rows, float unit,
                                           tile::Fragment<kWidth>& o) {
  constexpr int kColumns = ForwardShared<Element, kWidth>::kOutColumns;
  const int row = job.row + 64 * group;
  const int count = job.at.q_count - row;  // rows of this warpgroup that exist, if below 64
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) inverse[i] = rows.l[i] > 0 ? ptx::reciprocal(rows.l[i]) : 0;
  if (tile::lane() % 4 == 0) {
    const std::int64_t first =
        (static_cast<std::int64_t>(job.batch) * p.jobs.heads + job.head) * p.jobs.seq_q +
        job.at.q_begin + row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile::first_row() + 8 * i;
      if (at >= count) continue;
      p.m[first + at] = rows.m[i] * unit;
      p.l[first + at] = rows.sum(i, unit * tile::kLog2e);
    }
  }
  if (count <= 0) return;

  auto& out = shared.o[group];
  o.scale_rows(inverse[0], inverse[1]);
#pragma unroll
  for (int column = 0; column < kWidth; column += kColumns) {
    tile::Packed<kColumns> packed;
    tile::pack<Element>(packed, o, column);
    if (tile::group_thread() == 0) ptx::bulk_wait_read<0>();
    tile::sync_warpgroup(barrier);
    tile::store(out, 0, packed);
    ptx::fence_proxy_shared();
    tile::sync_warpgroup(barrier);
    if (p.jobs.documents.q == nullptr || count >= 64) {
      if (tile::group_thread() != 0) continue;
#pragma unroll 1
      for (int slab = 0; slab < out.kSlabs; ++slab)
        ptx::copy_tensor_to_global(&p.o, out.bytes + slab * out.kSlabBytes,
                                   column + slab * tile::kSlabColumns, job.at.q_begin + row,
                                   job.head, job.batch);
      ptx::bulk_commit();
    } else {
      // The copy engine would write into the next document.
      std::uint16_t* to = p.o_data + job.batch * p.o_batch + job.head * p.o_head +
                          static_cast<std::int64_t>(job.at.q_begin + row) * p.o_row + column;
      tile::copy_rows<tile::kWarpgroup>(to, p.o_row, out, count, p.d - column);
    }
  }
}

// What one warpgroup does of a job.
struct GroupJob {
  int tiles;          // as in QueryJob
  int last, end;      // key tiles from `last` down to end + 1
  Range seen, whole;  // of this warpgroup's rows

  __device__ __forceinline__ GroupJob(const QueryJob& job, int group)
      : tiles(tile::uniform(job.tiles)),
        last(tile::uniform(job.last_tile)),
        end(last - tiles),
        seen{tile::uniform(job.seen[group].first), tile::uniform(job.seen[group].last)},
        whole{tile::uniform(job.whole[group].first), tile::uniform(job.whole[group].last)} {}
  __device__ __forceinline__ bool sees() const { return seen.first <= seen.last; }
};

template <class Element, int kWidth, bool kCapped>
__device__ void consume(ForwardShared<Element, kWidth>& shared, const ForwardParams& p, int group) {
  using Tiles = ForwardTiles<kWidth>;
  constexpr int kKeys = Tiles::kKeys;
  constexpr bool kTakeTurns = true;
  constexpr int kTurn = 1, kOwn = kTurn + Tiles::kGroups;  // named barriers
  const int own_barrier = kOwn + group, own_turn = kTurn + group;
  const int next_turn = kTurn + (group + 1) % Tiles::kGroups;
  const float unit = p.softcap > 0 ? 1.f : p.scale;  // natural units of a score in registers
  const float c = unit * tile::kLog2e;

  tile::RingPlace<kQueryJobs> jobs;
  tile::RingPlace<Tiles::kQueryStages> q_place;
  tile::RingPlace<Tiles::kStages> k_place, v_place;
  tile::Fragment<kKeys> s;
  tile::Packed<kKeys> probabilities;
  tile::Fragment<kWidth> o;
  tile::LazyRowFold rows;
  float keep[2];

  const auto take_turn = [&] {
    if constexpr (kTakeTurns) ptx::named_barrier_sync(own_turn, 2 * tile::kWarpgroup);
  };
  const auto pass_turn = [&] {
    if constexpr (kTakeTurns) ptx::named_barrier_arrive(next_turn, 2 * tile::kWarpgroup);
  };
  const auto free_keys = [&] {
    k_place.release(shared.k_ring);
    k_place.next();
  };
  const auto free_values = [&] {
    v_place.release(shared.v_ring);
    v_place.next();
  };
  const auto free_queries = [&] {
    q_place.release(shared.q_ring[group]);
    q_place.next();
  };
  // A tile that only other warpgroups' rows see.
  const auto pass = [&] {
    k_place.wait_full(shared.k_ring);
    take_turn();
    pass_turn();
    free_keys();
    v_place.wait_full(shared.v_ring);
    free_values();
  };
  const auto score = [&] {
    tile::begin_products();
    tile::multiply_rows(s, shared.q[group][tile::uniform(q_place.stage())], 0,
                        shared.k[tile::uniform(k_place.stage())]);
    tile::end_group();
  };
  const auto accumulate = [&] {
    v_place.wait_full(shared.v_ring);
    tile::begin_products();
    tile::accumulate(o, probabilities, shared.v[tile::uniform(v_place.stage())]);
    tile::end_group();
  };
  // Of key tile n; whether O must be scaled by `keep`.
  const auto softmax = [&](const GroupJob& of, int n) {
    const QueryJob& job = shared.job[jobs.stage()];
    if constexpr (kCapped) {
      // Always so; without the branch registers are spilled at d 64.
      if (p.softcap > 0) cap_scores(s, p.scale, p.softcap);
    }
    if (n < of.whole.first || n > of.whole.last)
      mask_scores(s, job, of.whole, job.row + 64 * group, n);
    return rows.fold(s, c, keep);
  };

  if (kTakeTurns && group == Tiles::kGroups - 1)
    ptx::named_barrier_arrive(next_turn, 2 * tile::kWarpgroup);
  jobs.wait_full(shared.jobs);
  GroupJob now(shared.job[jobs.stage()], group);
  o.clear();
  bool begun = false;  // P of the first tile was made beside the last product of the job before
  while (now.tiles >= 0) {
    int n = now.last;
    if (begun) {
      --n;
    } else {
      rows = {};
      for (; n > now.end && n > now.seen.last; --n) pass();
      if (now.tiles > 0) q_place.wait_full(shared.q_ring[group]);
      if (now.sees()) {
        k_place.wait_full(shared.k_ring);
        take_turn();
        score();
        pass_turn();
        tile::wait_products<0>();
        free_keys();
        if (n == now.seen.first) free_queries();
        softmax(now, n--);
        tile::pack<Element>(probabilities, s);
      } else if (now.tiles > 0) {
        free_queries();
      }
    }
    if (now.sees()) {
      for (; n >= now.seen.first; --n) {
        k_place.wait_full(shared.k_ring);
        take_turn();
        score();
        accumulate();
        pass_turn();
        tile::wait_products<1>();
        free_keys();
        if (n == now.seen.first) free_queries();
        const bool grown = softmax(now, n);
        tile::wait_products<0>();
        free_values();
        if (grown) o.scale_rows(keep[0], keep[1]);
        tile::pack<Element>(probabilities, s);
      }
    }
    // Neither this job's last product nor the next one's first has a softmax of its own job beside
    // it: they are queued together.
    const tile::RingPlace<kQueryJobs> done = jobs;
    jobs.next();
    jobs.wait_full(shared.jobs);
    const GroupJob next(shared.job[jobs.stage()], group);
    begun = now.sees() && n == now.end && next.tiles > 0 && next.seen.last == next.last;
    tile::LazyRowFold finished = rows;
    if (begun) {
      q_place.wait_full(shared.q_ring[group]);
      k_place.wait_full(shared.k_ring);
      take_turn();
      score();
      accumulate();
      pass_turn();
      tile::wait_products<1>();
      free_keys();
      if (next.last == next.seen.first) free_queries();
      rows = {};
      softmax(next, next.last);
      tile::wait_products<0>();
      free_values();
      tile::pack<Element>(probabilities, s);
    } else if (now.sees()) {
      accumulate();
      tile::wait_products<0>();
      free_values();
    }
    for (; n > now.end; --n) pass();

    finished.total();
    store_rows(shared, p, shared.job[done.stage()], group, own_barrier, finished, unit, o);
    __syncwarp();
    done.release(shared.jobs);
    o.clear();
    now = next;
  }
  if (tile::group_thread() == 0) ptx::bulk_wait<0>();
}

// kCapped: with a softcap, whose 1,600 instructions a tile would stand in the middle of the loop.
template <class Element, int kWidth, bool kCapped>
__global__ void __launch_bounds__((ForwardTiles<kWidth>::kGroups + 1) * tile::kWarpgroup, 1)
    hopper_forward(const __grid_constant__ ForwardParams p) {
  using Tiles = ForwardTiles<kWidth>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Element, kWidth>*>(memory);
  constexpr int kConsumerWarps = 4 * Tiles::kGroups;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.o}) ptx::prefetch_tensor_map(map);
    shared.jobs.init(1, kConsumerWarps + 1);
    for (auto& ring : shared.q_ring) ring.init(1, 4);
    shared.k_ring.init(1, kConsumerWarps);
    shared.v_ring.init(1, kConsumerWarps);
    ptx::mbarrier_init(&shared.patch, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<Tiles::kFeeder>();
    if (tile::block_warp() == 0) produce<Element, kWidth>(shared, p);
    if (tile::block_warp() == 1)
      schedule_queries<Tiles::kKeys>(shared, p.jobs, 64 * Tiles::kGroups, true);
  } else {
    ptx::grow_registers<Tiles::kConsumer>();
    consume<Element, kWidth, kCapped>(shared, p, warpgroup - 1);
  }
}

template <class Element, int kWidth>
void launch_hopper_forward(const ForwardParams& params, int blocks, CUstream_st* stream) {
  using Shared = ForwardShared<Element, kWidth>;
  using Tiles = ForwardTiles<kWidth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  static_assert(tile::registers_fit(Tiles::kGroups, Tiles::kFeeder, Tiles::kConsumer));
  tile::launch(params.softcap > 0 ? hopper_forward<Element, kWidth, true>
                                  : hopper_forward<Element, kWidth, false>,
               {blocks, (ForwardTiles<kWidth>::kGroups + 1) * tile::kWarpgroup, sizeof(Shared)},
               stream, params);
}

}  // namespace tilefold::attention
