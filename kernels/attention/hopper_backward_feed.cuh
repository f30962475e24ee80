// Of hopper_backward.cuh: jobs, shared memory, and the warps that feed: scheduler, producer,
// writers.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/document_loader.cuh"
#include "kernels/attention/hopper_key_jobs.cuh"
#include "kernels/attention/hopper_step.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/ring.cuh"

namespace tilefold::attention {

constexpr int kBackwardGroups = 2;
constexpr int kBackwardFeeder = 24, kBackwardConsumer = 240;  // registers a thread
constexpr int kBackwardThreads = (kBackwardGroups + 1) * tile::kWarpgroup;

template <class Element, int kWidth>
struct BackwardShared {
  static constexpr int kRows = BackwardTiles<kWidth>::kRows;
  static constexpr int kKeys = BackwardTiles<kWidth>::kKeys;
  using Rows = tile::SharedTile<Element, kRows, kWidth>;
  using Keys = tile::SharedTile<Element, kKeys, kWidth>;
  using Scores = tile::SharedTile<Element, kKeys, kRows>;
  using Result = tile::SharedTile<Element, 64, kWidth>;  // of a warpgroup's keys
  using Stats = StepStats<kRows>;
  // A step's part of dQ as its fragments lie, by warpgroup, warp, register / 4, lane; or its sum's
  // tile of dQ.
  struct alignas(1024) Part {
    float4 x[kBackwardGroups][4][8][32];
    __device__ Rows& rows() { return *reinterpret_cast<Rows*>(x); }
  };

  Keys k, v;
  Rows q[2], d_o[2];
  Scores ds[2];
  Part part[2];
  Stats stats[2];
  static constexpr int kJobs = 4;
  KeyJob job[kJobs];
  tile::RingBarriers<kJobs> jobs;
  tile::RingBarriers<2> q_ring, do_ring, part_ring, results;
  tile::RingBarriers<1> k_ring, v_ring;
  std::uint64_t patch;          // a tile that the producer still has to clear the tail of
  std::uint64_t want;           // the producer wants the next job
  std::uint64_t sum[2];         // by writer: a sum of dQ is back
  std::uint32_t last_stage[2];  // by results' place: the last step's

  // Where a job's results lie on their way out, by warpgroup and the last step's stage: dK in that
  // stage's Q and dO, dV in its dS where both warpgroups' fit. Nothing of this stage is used before
  // its next Q is there, for which the results were read. Else dV is in all of dS, and the next
  // job's first step waits.
  static constexpr bool kValuesApart = 2 * sizeof(Result) <= sizeof(Scores);
  static_assert(sizeof(Result) <= sizeof(Rows) && sizeof(Result) <= sizeof(Scores));
  __device__ Result& dv(int group, std::uint32_t stage) {
    return kValuesApart ? reinterpret_cast<Result*>(ds[stage].bytes)[group]
                        : *reinterpret_cast<Result*>(ds[group].bytes);
  }
  // To wait until the results of the job before were read.
  static __device__ tile::RingPlace<2> results_before(tile::RingPlace<2> place) {
    return {place.count + 1};
  }
  __device__ Result& dk(int group, std::uint32_t stage) {
    return *reinterpret_cast<Result*>(group == 0 ? q[stage].bytes : d_o[stage].bytes);
  }
};

template <class Element, int kWidth>
__device__ void produce_backward(BackwardShared<Element, kWidth>& shared, const BackwardParams& p) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows;
  constexpr auto kStatBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Stats));
  const bool leader = tile::lane() == 0;
  tile::RingPlace<Shared::kJobs> jobs;
  tile::RingPlace<2> place;
  DocumentLoader loader{p.documents.q != nullptr, &shared.patch};

  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    const auto load_keys = [&](auto& to, const CUtensorMap* map, tile::RingBarriers<1>& ring) {
      tile::RingPlace<1>{jobs.count}.wait_empty(ring);
      loader.load(to, map, {job.at.k_begin + job.key, job.key_head, job.batch},
                  job.at.k_count - job.key, &ring.full[0]);
    };
    constexpr int kAhead = 2;  // steps for which the next job is made
    StepPlace step(job, p.group);
    for (bool first = true;; step.next(job, p.group), place.next()) {
      if (leader && (step.left == kAhead + 1 || (first && step.left <= kAhead)))
        ptx::mbarrier_arrive(&shared.want);
      const bool more = step.more();
      if (more) {
        const tile::RowsAt at{job.at.q_begin + step.tile * kRows, step.head, job.batch};
        const int rows = job.at.q_count - step.tile * kRows;
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
        place.wait_empty(shared.do_ring);
        loader.load(shared.d_o[place.stage()], &p.d_o, at, rows,
                    &shared.do_ring.full[place.stage()]);
      }
      // In the order in which the job before leaves their places.
      if (first) {
        load_keys(shared.v, &p.v, shared.v_ring);
        load_keys(shared.k, &p.k, shared.k_ring);
      }
      first = false;
      if (!more) break;
    }
    __syncwarp();
    tile::RingPlace<Shared::kJobs>{tile::anew(jobs.count)}.release(shared.jobs);
  }
}

// The key tiles that add to a query tile's dQ: those with a key that some of its queries see.
template <int kRows, int kKeys>
__device__ inline Range adders_of(const KeyJob& job, int tile) {
  const Diagonal& d = job.diagonal;
  const int last_row = min((tile + 1) * kRows, job.at.q_count) - 1;
  return {max(tile * kRows + d.off - d.left, 0) / kKeys,
          min(last_row + d.off + d.right, job.at.k_count - 1) / kKeys};
}

__device__ inline void finish_copies() {
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
}

// The first `count` rows of a tile to row `row`; by one warp, the tile visible to the copy engine.
// kFinish: waits until the tile was read.
template <bool kFinish, class Tile>
__device__ inline void write_tile(const Tile& from, const BackwardParams::Result& to,
                                  const BackwardParams& p, tile::RowsAt at, int count) {
  if (p.documents.q == nullptr || count >= Tile::kRows) {
    if (tile::lane() == 0) {
#pragma unroll 1
      for (int slab = 0; slab < Tile::kSlabs; ++slab)
        ptx::copy_tensor_to_global(&to.map, from.bytes + slab * Tile::kSlabBytes,
                                   slab * tile::kSlabColumns, at.row, at.head, at.batch);
      if constexpr (kFinish) finish_copies();
    }
  } else {
    // The copy engine would write into the next document.
    tile::copy_rows<32>(to.data + at.batch * to.at.batch + at.head * to.at.head +
                            static_cast<std::int64_t>(at.row) * to.at.row,
                        to.at.row, from, count, p.d);
  }
  __syncwarp();
}

// Turns a sum of dQ, as fragments, into the tile of dQ, half as long, in the same memory; by one
// warp. Two steps of 16 columns are read before they are written: the first rows' tile lies over
// them, all others over what was read before.
template <class Element, class Part>
__device__ inline void round_sum(Part& part, float scale) {
  auto& out = part.rows();
  constexpr bool kTall = std::remove_reference_t<decltype(out)>::kRows > 64;
  const int matrix = tile::lane() / 8, row = matrix % 2 * 8 + tile::lane() % 8;
#pragma unroll 1
  for (int strip = 0; strip < 8; ++strip) {  // of 16 rows and 64 columns, one warp's fragments
    const std::uint32_t first = out.chunk(16 * (kTall ? strip : strip % 4) + row,
                                          (kTall ? 0 : strip / 4 * 64) + matrix / 2 * 8);
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = part.x[strip / 4][strip % 4][2 * step + i][tile::lane()];
        a[i / 2][i % 2 * 2] = ptx::pack<Element>(x.x * scale, x.y * scale);
        a[i / 2][i % 2 * 2 + 1] = ptx::pack<Element>(x.z * scale, x.w * scale);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i)
        ptx::store_matrices(first ^ ((step + i) * 32u), a[i][0], a[i][1], a[i][2], a[i][3]);
    }
  }
  ptx::fence_proxy_shared();
  __syncwarp();
}

// One of two warps: every other part.
template <class Element, int kWidth>
__device__ void write_parts(BackwardShared<Element, kWidth>& shared, const BackwardParams& p,
                            std::uint32_t stage) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kRows = Shared::kRows, kKeys = Shared::kKeys;
  constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(typename Shared::Part));
  const auto free_part = [&] { ptx::mbarrier_arrive(&shared.part_ring.empty[stage]); };
  std::uint32_t sums = 0;  // that came back
  tile::RingPlace<Shared::kJobs> jobs;
  tile::RingPlace<2> place;
  for (;; jobs.next()) {
    jobs.wait_full(shared.jobs);
    const KeyJob& job = shared.job[jobs.stage()];
    if (job.key < 0) break;
    for (StepPlace step(job, p.group); step.more(); step.next(job, p.group), place.next()) {
      if (place.stage() != stage) continue;
      const std::uint32_t at = query_tile(p, job.batch, step.head, job.tile_base + step.tile);
      const Range adders = adders_of<kRows, kKeys>(job, step.tile);
      const auto others = static_cast<std::uint32_t>(adders.last - adders.first);
      const auto rank =
          static_cast<std::uint32_t>(job.down ? adders.last - job.tile : job.tile - adders.first);
      auto& part = shared.part[stage];
      const auto* from = reinterpret_cast<const float*>(part.x);
      float* const sum = p.dq_sum + static_cast<std::int64_t>(at) * (kRows * kWidth);
      place.wait_full(shared.part_ring);
      bool last = rank == others;
      if (others > 0) {
        if (tile::lane() == 0) {
          if (p.ordered && rank > 0) {
            while (ptx::load_acquire(p.turn + at) != rank) {
            }
            ptx::fence_proxy_global();
          }
          if (p.ordered && rank == 0) {
            ptx::copy_bytes_to_global(sum, part.x, kBytes);
          } else {
            ptx::add_floats_to_global(sum, from, kBytes);
          }
          ptx::bulk_commit();
          if (p.ordered && !last) {
            ptx::bulk_wait_read<0>();
            free_part();
          }
          ptx::bulk_wait<0>();
          ptx::fence_proxy_global();
          if (!p.ordered) {
            last = ptx::add_acquire_release(p.turn + at, 1) == others;
            ptx::fence_proxy_global();
            if (!last) free_part();
          } else if (!last) {
            ptx::store_release(p.turn + at, rank + 1);
          }
          if (last) {
            ptx::mbarrier_arrive_expect(&shared.sum[stage], kBytes);
            ptx::copy_bytes_to_shared(part.x, sum, kBytes, &shared.sum[stage]);
          }
        }
        last = __shfl_sync(0xffffffffu, last, 0);
        if (last) ptx::mbarrier_wait(&shared.sum[stage], sums++ & 1);
      }
      if (!last) continue;
      round_sum<Element>(part, p.scale);
      write_tile<true>(part.rows(), p.dq_out, p,
                       {job.at.q_begin + step.tile * kRows, step.head, job.batch},
                       job.at.q_count - step.tile * kRows);
      if (tile::lane() == 0) free_part();
    }
    jobs.release(shared.jobs);
  }
  if (tile::lane() == 0) ptx::bulk_wait<0>();
}

// The scheduler's other work: dK and dV of the job with this index when its consumers are done,
// beside the next one.
template <class Element, int kWidth>
__device__ __forceinline__ void write_results(BackwardShared<Element, kWidth>& shared,
                                              const BackwardParams& p, const KeyJob& job,
                                              std::uint32_t index) {
  // Registers are few: what is known of the job is read when it is needed.
  const auto last_stage = [&] { return shared.last_stage[tile::anew(index) % 2]; };
  tile::RingPlace<2>{index}.wait_full(shared.results);
#pragma unroll 1
  for (int i = 0; i < 2 * kBackwardGroups; ++i) {
    const int group = i / 2;
    const int count = job.at.k_count - job.key - 64 * group;
    if (count <= 0) break;
    const tile::RowsAt at{job.at.k_begin + job.key + 64 * group, job.key_head, job.batch};
    const BackwardParams::Result& to = i % 2 == 0 ? p.dv_out : p.dk_out;
    // Of keys that no query sees both are zero.
    const bool value = i % 2 == 0 || job.count == 0;
    const std::uint32_t stage = last_stage();
    write_tile<false>(value ? shared.dv(group, stage) : shared.dk(group, stage), to, p, at, count);
  }
  if (tile::lane() == 0) {
    finish_copies();
    if (job.count > 0) {
      const std::uint32_t stage = last_stage();
      ptx::mbarrier_arrive(&shared.q_ring.empty[stage], 4 * kBackwardGroups);
      ptx::mbarrier_arrive(&shared.do_ring.empty[stage], 4 * kBackwardGroups);
    }
    ptx::mbarrier_arrive(&shared.results.empty[tile::anew(index) % 2]);
  }
}

}  // namespace tilefold::attention
