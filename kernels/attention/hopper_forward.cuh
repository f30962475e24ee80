// The body of hopper_forward.h.
//
// A job is one (document or batch, head, tile of query rows). Block = one warpgroup that feeds, of
// which two warps work, and kGroups consumer warpgroups of 64 query rows each:
//
//   scheduler  which job is next, one ahead
//   producer   Q; then K and V tiles from the last visible key tile to the first
//   consumer   S_0 = Q K_0ᵀ; softmax; then for each further tile
//                queue S_j = Q K_jᵀ and O += P_{j-1} V_{j-1}; softmax of S_j while the second runs;
//                O *= keep; P_j
//              O += P V; O / l; m, l; O out through shared memory
//
// Consumers queue their products in turn, so that one's softmax runs beside another's products.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_forward.h"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/tile/ring.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

struct ForwardJob {
  Extent at;
  Diagonal diagonal;
  int head, key_head, batch;
  int row;    // first query row, in the document
  int tiles;  // key tiles to visit: last_tile, last_tile - 1, ...; -1: no more jobs
  int last_tile;
  // By consumer warpgroup: the tiles that its rows see, and those of them that need no mask.
  Range seen[3], whole[3];
};

template <class Element, int kWidth>
struct ForwardShared {
  using Tiles = ForwardTiles<kWidth>;
  static constexpr bool kOwnOutput = kWidth < 256;
  using Rows = tile::SharedTile<Element, 64, kWidth>;
  using Keys = tile::SharedTile<Element, Tiles::kKeys, kWidth>;

  Rows q[Tiles::kGroups];
  Keys k[Tiles::kStages];
  Keys v[Tiles::kStages];
  std::conditional_t<kOwnOutput, Rows[Tiles::kGroups], ForwardJob> o;
  ForwardJob job[2];
  tile::RingBarriers<2> jobs;
  tile::RingBarriers<1> q_ring[Tiles::kGroups];
  tile::RingBarriers<Tiles::kStages> k_ring, v_ring;
  std::uint64_t patch;  // a V tile that the producer still has to clear the tail of

  // d 256 has no room for a tile of its own: O leaves through Q's.
  __device__ Rows& output(int group) {
    if constexpr (kOwnOutput) return o[group];
    return q[group];
  }
};

template <int kKeys>
__device__ inline Range tiles_of(const Range& keys) {
  if (keys.last < keys.first) return {0, -1};
  return {keys.first / kKeys, keys.last / kKeys};
}

// Fills a job in shared memory.
template <int kKeys>
__device__ inline void make_job(const ForwardParams& p, int rows, std::int64_t index,
                                ForwardJob& job) {
  if (index >= p.pairs * p.tiles_q) {
    job.tiles = -1;
    return;
  }
  // Sections of pairs share the cache; within one the longest jobs (last rows) come first.
  const std::int64_t section = index / (p.section * p.tiles_q);
  const auto within = static_cast<std::uint32_t>(index - section * p.section * p.tiles_q);
  const auto pairs = static_cast<std::uint32_t>(least(p.section, p.pairs - section * p.section));
  const auto pair = static_cast<std::uint32_t>(section * p.section + within % pairs);
  const int sequence = static_cast<int>(pair / static_cast<std::uint32_t>(p.heads));
  job.head = static_cast<int>(pair % static_cast<std::uint32_t>(p.heads));
  job.key_head = job.head / p.group;
  job.batch = p.documents.q ? 0 : sequence;
  const Extent at = extent_of(p.documents, p.documents.q ? sequence : 0, p.seq_q, p.seq_k);
  job.at = at;
  job.diagonal = diagonal_of(at, p.window);
  const int row = (p.tiles_q - 1 - static_cast<int>(within / pairs)) * rows;
  job.row = row;
  const Range seen = tiles_of<kKeys>(keys_seen(at, p.window, row, rows));
  job.last_tile = seen.last;
  job.tiles = seen.last - seen.first + 1;
#pragma unroll 1
  for (int group = 0; 64 * group < rows; ++group) {
    job.seen[group] = tiles_of<kKeys>(keys_seen(at, p.window, row + 64 * group, 64));
    const Range by_all = keys_seen_by_all(at, p.window, row + 64 * group, 64);
    job.whole[group] = {(by_all.first + kKeys - 1) / kKeys, (by_all.last + 1) / kKeys - 1};
  }
}

// The warp that decides what comes next.
template <class Element, int kWidth>
__device__ void schedule(ForwardShared<Element, kWidth>& shared, const ForwardParams& p) {
  using Tiles = ForwardTiles<kWidth>;
  tile::RingPlace<2> jobs;
  std::int64_t index = blockIdx.x;
  bool more = true;
  while (more) {
    jobs.wait_empty(shared.jobs);
    if (tile::lane() == 0) {
      ForwardJob& job = shared.job[jobs.stage()];
      do {  // a short document has fewer tiles than the longest
        make_job<Tiles::kKeys>(p, 64 * Tiles::kGroups, index, job);
        index = p.next_job != nullptr
                    ? gridDim.x + static_cast<std::int64_t>(atomicAdd(p.next_job, 1u))
                    : index + gridDim.x;
      } while (job.tiles >= 0 && job.row >= job.at.q_count);
      more = job.tiles >= 0;
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
    }
    more = __shfl_sync(0xffffffffu, more, 0);
    jobs.next();
  }
}

// The warp that loads.
template <class Element, int kWidth>
__device__ void produce(ForwardShared<Element, kWidth>& shared, const ForwardParams& p) {
  using Tiles = ForwardTiles<kWidth>;
  using Shared = ForwardShared<Element, kWidth>;
  const bool leader = tile::lane() == 0;
  tile::RingPlace<2> jobs;
  tile::RingPlace<1> q_place;
  tile::RingPlace<Tiles::kStages> k_place, v_place;
  std::uint32_t patches = 0;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const ForwardJob& job = shared.job[jobs.stage()];
    const int tiles = job.tiles;
    if (tiles < 0) break;
    const int batch = job.batch, key_head = job.key_head;
    const auto load_k = [&](int row) {
      k_place.wait_empty(shared.k_ring);
      if (leader) {
        std::uint64_t* full = &shared.k_ring.full[k_place.stage()];
        ptx::mbarrier_arrive_expect(full, Shared::Keys::kBytes);
        tile::load_tile<Tiles::kKeys>(shared.k[k_place.stage()], &p.k, {row, key_head, batch},
                                      full);
      }
      k_place.next();
    };
    // Rows past a packed document belong to others and may hold anything; 0 x NaN must not reach O.
    const auto load_v = [&](int row) {
      v_place.wait_empty(shared.v_ring);
      std::uint64_t* full = &shared.v_ring.full[v_place.stage()];
      const int rows = job.at.k_begin + job.at.k_count - row;
      const bool patch = p.documents.q != nullptr && rows < Tiles::kKeys;
      if (leader) {
        std::uint64_t* arrived = patch ? &shared.patch : full;
        ptx::mbarrier_arrive_expect(arrived, Shared::Keys::kBytes);
        tile::load_tile<Tiles::kKeys>(shared.v[v_place.stage()], &p.v, {row, key_head, batch},
                                      arrived);
      }
      if (patch) {
        ptx::mbarrier_wait(&shared.patch, patches++ & 1);
        tile::clear_rows(shared.v[v_place.stage()], rows);
        if (leader) ptx::mbarrier_arrive(full);
      }
      v_place.next();
    };

    if (tiles > 0) {
      int row = job.at.k_begin + job.last_tile * Tiles::kKeys;
      load_k(row);
      for (int group = 0; group < Tiles::kGroups; ++group) {
        q_place.wait_empty(shared.q_ring[group]);
        if (leader) {
          std::uint64_t* full = &shared.q_ring[group].full[0];
          ptx::mbarrier_arrive_expect(full, Shared::Rows::kBytes);
          tile::load_tile<64>(shared.q[group], &p.q,
                              {job.at.q_begin + job.row + 64 * group, job.head, batch}, full);
        }
      }
      q_place.next();
      for (int j = 1; j < tiles; ++j, row -= Tiles::kKeys) {
        load_k(row - Tiles::kKeys);
        load_v(row);
      }
      load_v(row);
    }
    __syncwarp();
    jobs.release(shared.jobs);
  }
}

// Hides what the mask hides in key tile n; the rows of this warpgroup start at `row`.
template <int kKeys>
__device__ __forceinline__ void mask_scores(tile::Fragment<kKeys>& s, const ForwardJob& job,
                                            const Range& whole, int row, int n) {
  const Diagonal& d = job.diagonal;
  const int i = row + tile::first_row() + d.off - n * kKeys;  // the diagonal's column
  const int end = job.at.k_count - 1 - n * kKeys;
  if (n > whole.last) tile::hide_after(s, min(i + d.right, end), min(i + 8 + d.right, end));
  if (n < whole.first) tile::hide_before(s, i - d.left, i + 8 - d.left);
}

// Scores in raw units become capped scores in natural units.
template <int kKeys>
__device__ __forceinline__ void cap_scores(tile::Fragment<kKeys>& s, float scale, float softcap) {
  const float inner = scale / softcap;
#pragma unroll
  for (int r = 0; r < tile::Fragment<kKeys>::kCount; ++r)
    s.x[r] = softcap * tile::tanh_accurate(s.x[r] * inner);
}

// o / l, m and l to global memory; rows past the document are left alone.
template <class Element, int kWidth>
__device__ __forceinline__ void store_rows(ForwardShared<Element, kWidth>& shared,
                                           const ForwardParams& p, const ForwardJob& job, int group,
                                           int barrier, const tile::RowFold& rows, float unit,
                                           tile::Fragment<kWidth>& o) {
  const int row = job.row + 64 * group;
  const int count = job.at.q_count - row;  // rows of this warpgroup that exist, if below 64
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) inverse[i] = rows.l[i] > 0 ? 1 / rows.l[i] : 0;
  if (tile::lane() % 4 == 0) {
    const std::int64_t first =
        (static_cast<std::int64_t>(job.batch) * p.heads + job.head) * p.seq_q + job.at.q_begin +
        row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile::first_row() + 8 * i;
      if (at >= count) continue;
      p.m[first + at] = rows.m[i] * unit;
      p.l[first + at] = rows.l[i];
    }
  }
  if (count <= 0) return;

  auto& out = shared.output(group);
  tile::Packed<kWidth> packed;
  o.scale_rows(inverse[0], inverse[1]);
  tile::pack<Element>(packed, o);
  if (tile::group_thread() == 0) ptx::bulk_wait_read<0>();
  tile::sync_warpgroup(barrier);
  tile::store(out, 0, packed);
  ptx::fence_proxy_shared();
  tile::sync_warpgroup(barrier);
  if (p.documents.q == nullptr || count >= 64) {
    if (tile::group_thread() != 0) return;
    for (int slab = 0; slab < out.kSlabs; ++slab)
      ptx::copy_tensor_to_global(&p.o, out.bytes + slab * out.kSlabBytes, slab * tile::kSlabColumns,
                                 job.at.q_begin + row, job.head, job.batch);
    ptx::bulk_commit();
  } else {
    // The copy engine would write into the next document.
    std::uint16_t* to = p.o_data + job.batch * p.o_batch + job.head * p.o_head +
                        static_cast<std::int64_t>(job.at.q_begin + row) * p.o_row;
    tile::copy_rows<tile::kWarpgroup>(to, p.o_row, out, count, p.d);
  }
}

template <class Element, int kWidth>
__device__ void consume(ForwardShared<Element, kWidth>& shared, const ForwardParams& p, int group) {
  using Tiles = ForwardTiles<kWidth>;
  constexpr int kKeys = Tiles::kKeys;
  constexpr bool kOwnOutput = ForwardShared<Element, kWidth>::kOwnOutput;
  constexpr bool kTakeTurns = kWidth < 256;
  constexpr int kTurn = 1, kOwn = kTurn + Tiles::kGroups;  // named barriers
  const int own_barrier = kOwn + group, own_turn = kTurn + group;
  const int next_turn = kTurn + (group + 1) % Tiles::kGroups;
  const float unit = p.softcap > 0 ? 1.f : p.scale;  // natural units of a score in registers
  const float c = unit * tile::kLog2e;

  tile::RingPlace<2> jobs;
  tile::RingPlace<1> q_place;
  tile::RingPlace<Tiles::kStages> k_place, v_place;
  tile::Fragment<kKeys> s;
  tile::Packed<kKeys> probabilities;
  tile::Fragment<kWidth> o;

  if (kTakeTurns && group == Tiles::kGroups - 1)
    ptx::named_barrier_arrive(next_turn, 2 * tile::kWarpgroup);

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const ForwardJob& job = shared.job[jobs.stage()];
    const int tiles = tile::uniform(job.tiles);
    if (tiles < 0) break;
    const Range seen{tile::uniform(job.seen[group].first), tile::uniform(job.seen[group].last)};
    const Range whole{tile::uniform(job.whole[group].first), tile::uniform(job.whole[group].last)};
    int n = tile::uniform(job.last_tile);
    const int end = n - tiles;

    tile::RowFold rows;
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
      tile::multiply_rows(s, shared.q[group], 0, shared.k[tile::uniform(k_place.stage())]);
      tile::end_group();
    };
    const auto accumulate = [&] {
      v_place.wait_full(shared.v_ring);
      tile::begin_products();
      tile::accumulate(o, probabilities, shared.v[tile::uniform(v_place.stage())]);
      tile::end_group();
    };
    const auto softmax = [&] {
      if (p.softcap > 0) cap_scores(s, p.scale, p.softcap);
      if (n < whole.first || n > whole.last) mask_scores(s, job, whole, job.row + 64 * group, n);
      rows.fold(s, c, keep);
    };

    o.clear();
    for (; n > end && n > seen.last; --n) pass();
    if (tiles > 0) q_place.wait_full(shared.q_ring[group]);
    if (seen.first <= seen.last) {
      k_place.wait_full(shared.k_ring);
      take_turn();
      score();
      pass_turn();
      tile::wait_products<0>();
      free_keys();
      softmax();
      tile::pack<Element>(probabilities, s);

      for (--n; n >= seen.first; --n) {
        k_place.wait_full(shared.k_ring);
        take_turn();
        score();
        accumulate();
        pass_turn();
        tile::wait_products<1>();
        free_keys();
        softmax();
        tile::wait_products<0>();
        free_values();
        if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) o.scale_rows(keep[0], keep[1]);
        tile::pack<Element>(probabilities, s);
      }
      if (kOwnOutput) q_place.release(shared.q_ring[group]);
      accumulate();
      tile::wait_products<0>();
      free_values();
    } else if (kOwnOutput && tiles > 0) {
      q_place.release(shared.q_ring[group]);
    }
    for (; n > end; --n) pass();

    rows.total();
    store_rows(shared, p, job, group, own_barrier, rows, unit, o);
    __syncwarp();
    jobs.release(shared.jobs);
    if (tiles > 0) {
      if constexpr (!kOwnOutput) {
        // Q's tile carries O: free once O has left it.
        if (tile::group_thread() == 0) ptx::bulk_wait_read<0>();
        tile::sync_warpgroup(own_barrier);
        q_place.release(shared.q_ring[group]);
      }
      q_place.next();
    }
  }
  if (tile::group_thread() == 0) ptx::bulk_wait<0>();
}

template <class Element, int kWidth>
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
    if (tile::block_warp() == 1) schedule<Element, kWidth>(shared, p);
  } else {
    ptx::grow_registers<Tiles::kConsumer>();
    consume<Element, kWidth>(shared, p, warpgroup - 1);
  }
}

template <class Element, int kWidth>
void launch_hopper_forward(const ForwardParams& params, int blocks, CUstream_st* stream) {
  using Shared = ForwardShared<Element, kWidth>;
  using Tiles = ForwardTiles<kWidth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  static_assert(tile::registers_fit(Tiles::kGroups, Tiles::kFeeder, Tiles::kConsumer));
  tile::launch(hopper_forward<Element, kWidth>,
               {blocks, (ForwardTiles<kWidth>::kGroups + 1) * tile::kWarpgroup, sizeof(Shared)},
               stream, params);
}

}  // namespace tilefold::attention
