// The body of hopper_split.h.
//
// A cluster's job is a tile of query rows of one head; its block r takes the r-th part of the key
// tiles that those rows see, in a block
//
//   producer   one thread: Q; then K and V tiles of the part, last to first
//   consumer   two warpgroups of 64 rows each, or both the same 64 rows and every other key tile:
//                S_0 = Q K_0ᵀ; softmax; then for each further tile
//                queue S_j = Q K_jᵀ and O += P_{j-1} V_{j-1}; softmax of S_j while the second runs;
//                O *= keep; P_j
//              the last product; O, m, l and what they are relative to into the shared memory of
//              the blocks that the rows belong to
//
// Then block r puts together rows r n / parts on: with b the largest base of the parts' sums,
//
//   o = sum_p 2^((b_p - b) c) O_p / l     l = sum_p 2^((b_p - b) c) l_p     c = (scale) log2 e
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_row_mask.cuh"
#include "kernels/attention/hopper_split.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/product.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct SplitShared {
  using Tiles = SplitTiles<kWidth>;
  using Rows = tile::SharedTile<Element, 64, kWidth>;
  using Keys = tile::SharedTile<Element, Tiles::kKeys, kWidth>;

  Rows q[2];
  Keys k[Tiles::kStages];
  Keys v[Tiles::kStages];
  // What the parts found of this block's rows: [parts of the keys, rows of this block]. Chunks of 8
  // columns are swizzled by the row, for the banks' sake.
  float o[128][kWidth];
  float m[128], base[128], l[128];
  std::uint64_t q_full;
  tile::RingBarriers<Tiles::kStages> k_ring, v_ring;
};

// What a block does.
struct SplitJob {
  int rank, parts;
  int head, batch, row;  // first query row
  int last, tiles;       // key tiles last, last - 1, ...
};

template <int kKeys>
__device__ inline SplitJob split_job(const SplitParams& p, const Extent& at) {
  SplitJob job;
  job.parts = ptx::cluster_blocks();
  job.rank = ptx::cluster_rank();
  // The longest jobs (last rows) come first.
  const int index = static_cast<int>(blockIdx.x) / job.parts, pair = index % p.pairs;
  job.head = pair % p.heads;
  job.batch = pair / p.heads;
  job.row = (p.tiles_q - 1 - index / p.pairs) * p.rows;
  const Range keys = keys_seen(at, p.window, job.row, p.rows);
  const int first = keys.first / kKeys;
  const int count = keys.last < keys.first ? 0 : keys.last / kKeys - first + 1;
  const int begin = job.rank * count / job.parts, end = (job.rank + 1) * count / job.parts;
  job.last = tile::uniform(first + end - 1);
  job.tiles = tile::uniform(end - begin);
  return job;
}

template <class Element, int kWidth>
__device__ void produce_split(SplitShared<Element, kWidth>& shared, const SplitParams& p,
                              const SplitJob& job) {
  using Shared = SplitShared<Element, kWidth>;
  constexpr int kKeys = Shared::Tiles::kKeys, kStages = Shared::Tiles::kStages;
  const int key_head = job.head / p.group;
  tile::RingPlace<kStages> place;
  for (int j = 0; j < job.tiles; ++j, place.next()) {
    const tile::RowsAt at{(job.last - j) * kKeys, key_head, job.batch};
    const auto load = [&](auto& ring, auto& tiles, const CUtensorMap& map) {
      place.wait_empty(ring);
      std::uint64_t* full = &ring.full[place.stage()];
      ptx::mbarrier_arrive_expect(full, Shared::Keys::kBytes);
      tile::load_tile<kKeys>(tiles[place.stage()], &map, at, full);
    };
    load(shared.k_ring, shared.k, p.k);
    if (j == 0) {
      const int count = p.rows / 64;
      ptx::mbarrier_arrive_expect(&shared.q_full,
                                  static_cast<std::uint32_t>(count) * Shared::Rows::kBytes);
      for (int i = 0; i < count; ++i)
        tile::load_tile<64>(shared.q[i], &p.q, {job.row + 64 * i, job.head, job.batch},
                            &shared.q_full);
    }
    load(shared.v_ring, shared.v, p.v);
  }
}

// A warpgroup's results of rows `row` on of the tile, as part `part` of them, to the blocks that
// put them together.
template <class Element, int kWidth>
__device__ void give(SplitShared<Element, kWidth>& shared, const SplitParams& p,
                     const SplitJob& job, int row, int part, const tile::LazyRowFold& rows,
                     const tile::Fragment<kWidth>& o) {
  const int rows_a_block = p.rows / job.parts;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = row + tile::first_row() + 8 * i, owner = at / rows_a_block;
    const int slot = part * rows_a_block + at % rows_a_block;
    const std::uint32_t to = ptx::cluster_address(&shared.o[slot][0], owner) +
                             static_cast<std::uint32_t>(sizeof(float)) * tile::first_column();
#pragma unroll
    for (int chunk = 0; chunk < kWidth / 8; ++chunk)
      ptx::store_cluster(to + 32u * static_cast<std::uint32_t>(chunk ^ (slot & 3)),
                         o.x[4 * chunk + 2 * i], o.x[4 * chunk + 2 * i + 1]);
    if (tile::lane() % 4 == 0) {
      ptx::store_cluster(ptx::cluster_address(&shared.m[slot], owner), rows.m[i]);
      ptx::store_cluster(ptx::cluster_address(&shared.base[slot], owner), rows.base[i]);
      ptx::store_cluster(ptx::cluster_address(&shared.l[slot], owner), rows.l[i]);
    }
  }
}

// The block's rows, from all parts, to global memory. By both consumer warpgroups.
template <class Element, int kWidth>
__device__ void put_together(const SplitShared<Element, kWidth>& shared, const SplitParams& p,
                             const SplitJob& job, int thread, float unit) {
  constexpr int kChunks = kWidth / 8;
  const float c = unit * tile::kLog2e;
  const int rows = p.rows / job.parts, parts = 128 / rows;
  for (int item = thread; item < rows * kChunks; item += 2 * tile::kWarpgroup) {
    const int chunk = item % kChunks, mine = item / kChunks;
    const int row = job.row + job.rank * rows + mine;
    if (row >= p.seq_q) break;
    float m = tile::negative_infinity(), base = m, l = 0, o[8] = {};
    for (int part = 0; part < parts; ++part) {
      m = fmaxf(m, shared.m[part * rows + mine]);
      base = fmaxf(base, shared.base[part * rows + mine]);
    }
    const float shift = base == tile::negative_infinity() ? 0 : base;
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
      const int slot = part * rows + mine;
      const float weight = ptx::exp2((shared.base[slot] - shift) * c);
      const auto* from = reinterpret_cast<const float4*>(&shared.o[slot][(chunk ^ (slot & 3)) * 8]);
      const float4 low = from[0], high = from[1];
      l = fmaf(weight, shared.l[slot], l);
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) o[i] = fmaf(weight, x[i], o[i]);
    }
    if (chunk == 0) {
      const std::int64_t at =
          (static_cast<std::int64_t>(job.batch) * p.heads + job.head) * p.seq_q + row;
      p.m[at] = m * unit;
      p.l[at] = l > 0 ? l * ptx::exp2((base - m) * c) : 0;
    }
    if (chunk * 8 >= p.d) continue;
    const float inverse = l > 0 ? 1 / l : 0;
    std::uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      packed[i] = ptx::pack<Element>(o[2 * i] * inverse, o[2 * i + 1] * inverse);
    std::uint16_t* to = p.o + job.batch * p.o_batch + job.head * p.o_head + row * p.o_row;
    *reinterpret_cast<uint4*>(to + chunk * 8) =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
}

template <class Element, int kWidth>
__device__ void consume_split(SplitShared<Element, kWidth>& shared, const SplitParams& p,
                              const SplitJob& job, const Extent& at, int group) {
  using Tiles = SplitTiles<kWidth>;
  constexpr int kKeys = Tiles::kKeys;
  const bool share_keys = p.rows == 64;  // else each warpgroup has rows of its own, and all tiles
  const int step = share_keys ? 2 : 1;
  const int row = job.row + (share_keys ? 0 : 64 * group);
  const int q = tile::uniform(share_keys ? 0 : group);
  const float unit = p.softcap > 0 ? 1.f : p.scale;  // natural units of a score in registers
  const float c = unit * tile::kLog2e;
  const Diagonal diagonal = diagonal_of(at, p.window);
  const Range by_all = keys_seen_by_all(at, p.window, row, 64);
  const Range whole{(by_all.first + kKeys - 1) / kKeys, (by_all.last + 1) / kKeys - 1};

  tile::RingPlace<Tiles::kStages> k_place, v_place;
  tile::Fragment<kKeys> s;
  tile::Packed<kKeys> probabilities;
  tile::Fragment<kWidth> o;
  tile::LazyRowFold rows;
  float keep[2];
  // Warpgroups with all tiles queue their products in turn: barriers 1 and 2.
  const auto take_turn = [&] {
    if (!share_keys) ptx::named_barrier_sync(1 + group, 2 * tile::kWarpgroup);
  };
  const auto pass_turn = [&](bool wanted) {
    if (!share_keys && wanted) ptx::named_barrier_arrive(2 - group, 2 * tile::kWarpgroup);
  };
  const auto score = [&] {
    k_place.wait_full(shared.k_ring);
    take_turn();
    tile::begin_products();
    tile::multiply_rows(s, shared.q[q], 0, shared.k[tile::uniform(k_place.stage())]);
    tile::end_group();
  };
  const auto accumulate = [&] {
    v_place.wait_full(shared.v_ring);
    tile::begin_products();
    tile::accumulate(o, probabilities, shared.v[tile::uniform(v_place.stage())]);
    tile::end_group();
  };
  const auto free = [&](auto& place, auto& ring) {
    place.release(ring);
    place.count += static_cast<std::uint32_t>(step);
  };
  const auto softmax = [&](int n) {
    if (p.softcap > 0) cap_scores(s, p.scale, p.softcap);
    const int i = row + tile::first_row() + diagonal.off - n * kKeys;  // the diagonal's column
    const int end = at.k_count - 1 - n * kKeys;
    if (n > whole.last)
      tile::hide_after(s, min(i + diagonal.right, end), min(i + 8 + diagonal.right, end));
    if (n < whole.first) tile::hide_before(s, i - diagonal.left, i + 8 - diagonal.left);
    return rows.fold(s, c, keep);
  };

  o.clear();
  int j = share_keys ? group : 0;
  k_place.count = v_place.count = static_cast<std::uint32_t>(j);
  if (j < job.tiles) {
    if (group == 1) pass_turn(true);
    ptx::mbarrier_wait(&shared.q_full, 0);
    score();
    pass_turn(group == 0 || job.tiles > 1);
    tile::wait_products<0>();
    free(k_place, shared.k_ring);
    softmax(job.last - j);
    tile::pack<Element>(probabilities, s);
    for (j += step; j < job.tiles; j += step) {
      score();
      accumulate();
      pass_turn(group == 0 || j + 1 < job.tiles);
      tile::wait_products<1>();
      free(k_place, shared.k_ring);
      const bool grown = softmax(job.last - j);
      tile::wait_products<0>();
      free(v_place, shared.v_ring);
      if (grown) o.scale_rows(keep[0], keep[1]);
      tile::pack<Element>(probabilities, s);
    }
    accumulate();
    tile::wait_products<0>();
    rows.total();
  }

  ptx::cluster_wait();  // all blocks have begun
  give(shared, p, job, row - job.row, share_keys ? 2 * job.rank + group : job.rank, rows, o);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  put_together(shared, p, job, group * tile::kWarpgroup + tile::group_thread(), unit);
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(3 * tile::kWarpgroup, 1)
    hopper_split(const __grid_constant__ SplitParams p) {
  using Tiles = SplitTiles<kWidth>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<SplitShared<Element, kWidth>*>(memory);
  if (threadIdx.x == 0) {
    const int readers = p.rows / 64 * 4;  // warps that read a key tile
    ptx::mbarrier_init(&shared.q_full, 1);
    shared.k_ring.init(1, readers);
    shared.v_ring.init(1, readers);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  const Extent at{0, p.seq_q, 0, p.seq_k};
  const SplitJob job = split_job<Tiles::kKeys>(p, at);
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<Tiles::kFeeder>();
    if (threadIdx.x == 0) produce_split(shared, p, job);
  } else {
    ptx::grow_registers<Tiles::kConsumer>();
    consume_split(shared, p, job, at, warpgroup - 1);
  }
}

template <class Element, int kWidth>
void launch_hopper_split(const SplitParams& params, int parts, CUstream_st* stream) {
  using Shared = SplitShared<Element, kWidth>;
  using Tiles = SplitTiles<kWidth>;
  static_assert(sizeof(Shared) <= 227 << 10);
  static_assert(tile::registers_fit(2, Tiles::kFeeder, Tiles::kConsumer));
  const std::int64_t clusters = static_cast<std::int64_t>(params.pairs) * params.tiles_q;
  if (clusters == 0) return;
  tile::launch(hopper_split<Element, kWidth>,
               {clusters * parts, 3 * tile::kWarpgroup, sizeof(Shared), parts}, stream, params);
}

}  // namespace tilefold::attention
