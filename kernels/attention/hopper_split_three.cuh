// Of hopper_split.h: a tile of 128 query rows and all its keys by one block, at width 64, where
// three warpgroups fill the tensor cores better than two (H200: a tile of 128 x 128 takes 0.94 us
// for 1.17).
//
//   producers  a thread for each ring: Q, then K and V tiles from the last on
//   ends       two warpgroups: rows 64 g and on with the first two thirds of the key tiles
//   middle     one warpgroup: both halves of the rows, one after the other, with the other tiles
//
// The middle leaves O, m and l of each half in shared memory; the halves' owners add them and
// store. All take turns at queueing their products, as in the forward kernel.
#pragma once

#include "kernels/attention/hopper_split.cuh"

namespace tilefold::attention {

template <class Element>
struct SplitThreeShared {
  static constexpr int kWidth = 64, kKeys = SplitTiles<kWidth>::kKeys, kStages = 3;
  using Rows = tile::SharedTile<Element, 64, kWidth>;
  using Keys = tile::SharedTile<Element, kKeys, kWidth>;
  struct Ring {
    Keys k[kStages], v[kStages];
  };
  // What the middle found of 64 rows, as its fragments lie: register / 4, thread.
  struct Part {
    float4 o[kWidth / 8][tile::kWarpgroup];
  };
  static_assert(sizeof(Part) <= sizeof(Keys));

  Rows q[2];
  Ring ring[2];  // of the ends, of the middle
  Part upper;
  float m[2][64], base[2][64], l[2][64];
  tile::RingBarriers<kStages> k_ring[2], v_ring[2];
  std::uint64_t q_full, part_full[2];

  // The lower half's lies where the middle's keys were.
  __device__ Part& part(int half) {
    return half == 0 ? upper : *reinterpret_cast<Part*>(ring[1].k[0].bytes);
  }
};

// Key tiles of a job: the ends go over the first `ends`, the middle over the others, twice.
struct SplitThird {
  int ends, middle, turns;
  __device__ __forceinline__ explicit SplitThird(const SplitJob& job)
      : ends(job.tiles - job.tiles / 3), middle(job.tiles / 3), turns(max(ends, 2 * middle)) {}
};

// Of ring `which`.
template <class Element>
__device__ void produce_third(SplitThreeShared<Element>& shared, const SplitParams& p,
                              const SplitJob& job, int which) {
  using Shared = SplitThreeShared<Element>;
  const SplitThird third(job);
  const int first = which == 0 ? 0 : third.ends, rounds = which == 0 ? 1 : 2;
  const int count = which == 0 ? third.ends : third.middle;
  const int key_head = job.head / p.group;
  tile::RingPlace<Shared::kStages> place;
  for (int round = 0; round < rounds; ++round)
    for (int j = 0; j < count; ++j, place.next()) {
      const tile::RowsAt at{(job.last - first - j) * Shared::kKeys, key_head, job.batch};
      const auto load = [&](auto& ring, auto& tiles, const CUtensorMap& map) {
        place.wait_empty(ring);
        std::uint64_t* full = &ring.full[place.stage()];
        ptx::mbarrier_arrive_expect(full, Shared::Keys::kBytes);
        tile::load_tile<Shared::kKeys>(tiles[place.stage()], &map, at, full);
      };
      load(shared.k_ring[which], shared.ring[which].k, p.k);
      if (which == 0 && j == 0) {
        ptx::mbarrier_arrive_expect(&shared.q_full, 2 * Shared::Rows::kBytes);
        for (int i = 0; i < 2; ++i)
          tile::load_tile<64>(shared.q[i], &p.q, {job.row + 64 * i, job.head, job.batch},
                              &shared.q_full);
      }
      load(shared.v_ring[which], shared.ring[which].v, p.v);
    }
}

template <class Element>
__device__ void consume_third(SplitThreeShared<Element>& shared, const SplitParams& p,
                              const SplitJob& job, const Extent& extent, int group) {
  using Shared = SplitThreeShared<Element>;
  constexpr int kKeys = Shared::kKeys, kWidth = Shared::kWidth, kTurn = 1, kOwn = 4;
  const SplitThird third(job);
  const int which = tile::uniform(group == 2 ? 1 : 0);
  auto& k_ring = shared.k_ring[which];
  auto& v_ring = shared.v_ring[which];
  auto& tiles = shared.ring[which];
  const float unit = p.softcap > 0 ? 1.f : p.scale;  // natural units of a score in registers
  const float c = unit * tile::kLog2e;
  const Diagonal diagonal = diagonal_of(extent, p.window);

  tile::RingPlace<Shared::kStages> k_place, v_place;
  tile::Fragment<kKeys> s;
  tile::Packed<kKeys> probabilities;
  tile::Fragment<kWidth> o;
  tile::LazyRowFold rows;
  float keep[2];
  int turn = 0;
  const auto take_turn = [&] { ptx::named_barrier_sync(kTurn + group, 2 * tile::kWarpgroup); };
  const auto pass_turn = [&] {
    if (++turn < third.turns || group < 2)
      ptx::named_barrier_arrive(kTurn + (group + 1) % 3, 2 * tile::kWarpgroup);
  };
  const auto accumulate = [&] {
    v_place.wait_full(v_ring);
    tile::begin_products();
    tile::accumulate(o, probabilities, tiles.v[tile::uniform(v_place.stage())]);
    tile::end_group();
  };
  // Rows 64 half and on, over key tiles first, first - 1, ...
  const auto fold = [&](int half, int first, int count) {
    const int row = job.row + 64 * half, q = tile::uniform(half);
    const Range by_all = keys_seen_by_all(extent, p.window, row, 64);
    const Range whole{(by_all.first + kKeys - 1) / kKeys, (by_all.last + 1) / kKeys - 1};
    const auto softmax = [&](int n) {
      if (p.softcap > 0) cap_scores(s, p.scale, p.softcap);
      const int i = row + tile::first_row() + diagonal.off - n * kKeys;  // the diagonal's column
      const int end = extent.k_count - 1 - n * kKeys;
      if (n > whole.last)
        tile::hide_after(s, min(i + diagonal.right, end), min(i + 8 + diagonal.right, end));
      if (n < whole.first) tile::hide_before(s, i - diagonal.left, i + 8 - diagonal.left);
      return rows.fold(s, c, keep);
    };
    const auto score = [&] {
      k_place.wait_full(k_ring);
      take_turn();
      tile::begin_products();
      tile::multiply_rows(s, shared.q[q], 0, tiles.k[tile::uniform(k_place.stage())]);
      tile::end_group();
    };
    const auto free_keys = [&] {
      k_place.release(k_ring);
      k_place.next();
    };
    const auto free_values = [&] {
      v_place.release(v_ring);
      v_place.next();
    };
    o.clear();
    rows = {};
    score();
    pass_turn();
    tile::wait_products<0>();
    free_keys();
    softmax(first);
    tile::pack<Element>(probabilities, s);
    for (int j = 1; j < count; ++j) {
      score();
      accumulate();
      pass_turn();
      tile::wait_products<1>();
      free_keys();
      const bool grown = softmax(first - j);
      tile::wait_products<0>();
      free_values();
      if (grown) o.scale_rows(keep[0], keep[1]);
      tile::pack<Element>(probabilities, s);
    }
    accumulate();
    tile::wait_products<0>();
    free_values();
    rows.total();
  };
  const auto finish_turns = [&] {
    while (turn < third.turns) {
      take_turn();
      pass_turn();
    }
  };

  if (group == 2) {
    if (third.turns == 0) return;
    ptx::named_barrier_arrive(kTurn, 2 * tile::kWarpgroup);
    ptx::mbarrier_wait(&shared.q_full, 0);
#pragma unroll 1
    for (int half = 0; half < 2 && third.middle > 0; ++half) {
      fold(half, job.last - third.ends, third.middle);
      auto& part = shared.part(half);
      tile::sync_warpgroup(kOwn + group);  // the keys that lay there were read
#pragma unroll
      for (int r = 0; r < kWidth / 8; ++r)
        part.o[r][tile::group_thread()] =
            make_float4(o.x[4 * r], o.x[4 * r + 1], o.x[4 * r + 2], o.x[4 * r + 3]);
      if (tile::lane() % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = tile::first_row() + 8 * i;
          shared.m[half][at] = rows.m[i];
          shared.base[half][at] = rows.base[i];
          shared.l[half][at] = rows.l[i];
        }
      }
      __syncwarp();
      if (tile::lane() == 0) ptx::mbarrier_arrive(&shared.part_full[half]);
    }
    finish_turns();
    return;
  }

  const int row = job.row + 64 * group, count = min(extent.q_count - row, 64);
  if (third.ends > 0) {
    ptx::mbarrier_wait(&shared.q_full, 0);
    fold(group, job.last, third.ends);
    finish_turns();
  } else {
    o.clear();
  }
  float weight[2] = {1, 1};
  if (third.middle > 0) {
    ptx::mbarrier_wait(&shared.part_full[group], 0);
    float other[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile::first_row() + 8 * i;
      const float b = shared.base[group][at], base = fmaxf(rows.base[i], b);
      const float shift = base == tile::negative_infinity() ? 0 : base;
      weight[i] = ptx::exp2((rows.base[i] - shift) * c);
      other[i] = ptx::exp2((b - shift) * c);
      rows.m[i] = fmaxf(rows.m[i], shared.m[group][at]);
      rows.l[i] = fmaf(other[i], shared.l[group][at], weight[i] * rows.l[i]);
      rows.base[i] = base;
    }
    const auto& part = shared.part(group);
#pragma unroll
    for (int r = 0; r < kWidth / 8; ++r) {
      const float4 x = part.o[r][tile::group_thread()];
      o.x[4 * r] = fmaf(other[0], x.x, weight[0] * o.x[4 * r]);
      o.x[4 * r + 1] = fmaf(other[0], x.y, weight[0] * o.x[4 * r + 1]);
      o.x[4 * r + 2] = fmaf(other[1], x.z, weight[1] * o.x[4 * r + 2]);
      o.x[4 * r + 3] = fmaf(other[1], x.w, weight[1] * o.x[4 * r + 3]);
    }
  }
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    inverse[i] = rows.l[i] > 0 ? 1 / rows.l[i] : 0;
    const int at = tile::first_row() + 8 * i;
    if (tile::lane() % 4 != 0 || at >= count) continue;
    const std::int64_t to =
        (static_cast<std::int64_t>(job.batch) * p.heads + job.head) * p.seq_q + row + at;
    p.m[to] = rows.m[i] * unit;
    p.l[to] = rows.sum(i, c);
  }
  if (count <= 0) return;
  // Nobody reads these rows of Q any more.
  o.scale_rows(inverse[0], inverse[1]);
  tile::Packed<kWidth> packed;
  tile::pack<Element>(packed, o);
  tile::sync_warpgroup(kOwn + group);
  tile::store(shared.q[group], 0, packed);
  tile::sync_warpgroup(kOwn + group);
  tile::copy_rows<tile::kWarpgroup>(
      p.o + job.batch * p.o_batch + job.head * p.o_head + row * p.o_row, p.o_row, shared.q[group],
      count, p.d);
}

template <class Element>
__global__ void __launch_bounds__(4 * tile::kWarpgroup, 1)
    hopper_split_three(const __grid_constant__ SplitParams p) {
  using Shared = SplitThreeShared<Element>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.q_full, 1);
    for (int which = 0; which < 2; ++which) {
      shared.k_ring[which].init(1, which == 0 ? 8 : 4);  // warps that read a key tile
      shared.v_ring[which].init(1, which == 0 ? 8 : 4);
      ptx::mbarrier_init(&shared.part_full[which], 4);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const Extent extent{0, p.seq_q, 0, p.seq_k};
  const SplitJob job = split_job<Shared::kKeys>(p, extent);
  const int warpgroup = tile::block_warpgroup();
  if (warpgroup == 0) {
    ptx::shrink_registers<ForwardTiles<64>::kFeeder>();
    if (threadIdx.x == 0) produce_third(shared, p, job, 0);
    if (threadIdx.x == 32) produce_third(shared, p, job, 1);
  } else {
    ptx::grow_registers<ForwardTiles<64>::kConsumer>();
    consume_third(shared, p, job, extent, warpgroup - 1);
  }
}

template <class Element>
void launch_hopper_split_three(const SplitParams& params, CUstream_st* stream) {
  using Shared = SplitThreeShared<Element>;
  static_assert(sizeof(Shared) <= 227 << 10);
  const std::int64_t blocks = static_cast<std::int64_t>(params.pairs) * params.tiles_q;
  if (blocks > 0)
    tile::launch(hopper_split_three<Element>, {blocks, 4 * tile::kWarpgroup, sizeof(Shared)},
                 stream, params);
}

}  // namespace tilefold::attention
