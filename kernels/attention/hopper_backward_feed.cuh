// Of hopper_backward.cuh: jobs, shared memory, and the warps that feed: scheduler, producer,
// writers.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_backward_rows.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/ring.cuh"

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
    float huge[4];  // [0] != 0: some |m log2 e| is beyond kFoldLimit
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
  const std::int64_t end = job.down ? p.down_pairs : all,
                     size = job.down ? kDownSection : p.section;
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
__device__ void produce_backward(BackwardShared<Element, kWidth>& shared, const BackwardParams& p) {
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
        tile::load_tile<Tile::kRows>(to, map, {row, head, job.batch}, patch ? &shared.patch : full);
      }
      if (patch) {
        ptx::mbarrier_wait(&shared.patch, patches++ & 1);
        tile::clear_rows(to, rows);
        if (leader) ptx::mbarrier_arrive_expect(full, more);
      }
    };
    const auto load_keys = [&](auto& to, const CUtensorMap* map, tile::RingBarriers<1>& ring) {
      key_place.wait_empty(ring);
      load(to, map, job.at.k_begin + job.key, job.at.k_count - job.key, job.key_head, &ring.full[0],
           0);
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
        ptx::copy_bytes_to_shared(&shared.stats[place.stage()],
                                  p.stats + static_cast<std::int64_t>(query_tile(
                                                p, job.batch, head, job.tile_base + tile)) *
                                                (2 * kRows + 4),
                                  kStatBytes, full);
      if (first) {
        load_keys(shared.v, &p.v, shared.v_ring);
        key_place.next();
        first = false;
      }
      place.wait_empty(shared.do_ring);
      load(shared.d_o[place.stage()], &p.d_o, row, rows, head, &shared.do_ring.full[place.stage()],
           0);
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

}  // namespace tilefold::attention
