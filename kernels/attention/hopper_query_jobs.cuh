// Jobs of the kernels that go over query rows: one is (document or batch, head, tile of query
// rows). The scheduling warp makes them one or two ahead, in shared memory.
#pragma once

#include "kernels/attention/hopper_jobs.h"
#include "kernels/tile/ring.cuh"

namespace tilefold::attention {

constexpr int kQueryJobs = 3;  // places for jobs; as many are used as QueryJobs says

struct QueryJob {
  Extent at;
  Diagonal diagonal;
  int head, key_head, batch;
  int sequence;  // batch element or document
  int row;       // first query row, in the document
  int tiles;     // key tiles to visit: last_tile, last_tile - 1, ...; -1: no more jobs
  int last_tile;
  // By consumer warpgroup: the tiles that its rows see, and those of them that need no mask.
  Range seen[3], whole[3];
};

// The key tiles that rows row .. row + rows - 1 of a document see, and those that all of them see.
template <int kKeys>
__device__ inline Range tiles_seen(const QueryJob& job, int row, int rows) {
  const Diagonal& d = job.diagonal;
  const int last_row = min(row + rows, job.at.q_count) - 1;
  const int first = max(row + d.off - d.left, 0);
  const int last = min(last_row + d.off + d.right, job.at.k_count - 1);
  if (last_row < row || last < first) return {0, -1};
  return {first / kKeys, last / kKeys};
}
template <int kKeys>
__device__ inline Range tiles_seen_by_all(const QueryJob& job, int row, int rows) {
  const Diagonal& d = job.diagonal;
  const int last_row = min(row + rows, job.at.q_count) - 1;
  const int first = max(last_row + d.off - d.left, 0);
  const int last = min(row + d.off + d.right, job.at.k_count - 1);
  return {(first + kKeys - 1) / kKeys, (max(last, -1) + 1) / kKeys - 1};
}

// Fills a job in shared memory.
template <int kKeys>
__device__ inline void make_query_job(const QueryJobs& p, int rows, std::uint32_t index,
                                      QueryJob& job) {
  if (index >= p.jobs) {
    job.tiles = -1;
    return;
  }
  // Sections of pairs share the cache; within one the longest jobs (last rows) come first.
  const auto tiles_q = static_cast<std::uint32_t>(p.tiles_q);
  const std::uint32_t section = index / (p.section * tiles_q);
  const std::uint32_t within = index - section * p.section * tiles_q;
  const std::uint32_t pairs = min(p.section, p.pairs - section * p.section);
  const std::uint32_t step = within / pairs;
  const std::uint32_t pair = section * p.section + within - step * pairs;
  const auto heads = static_cast<std::uint32_t>(p.heads);
  const auto sequence = static_cast<int>(pair / heads);
  job.head = static_cast<int>(pair % heads);
  job.sequence = sequence;
  job.key_head = job.head / p.group;
  job.batch = p.documents.q ? 0 : sequence;
  job.at = extent_of(p.documents, p.documents.q ? sequence : 0, p.seq_q, p.seq_k);
  job.diagonal = diagonal_of(job.at, p.window);
  const int row = (p.tiles_q - 1 - static_cast<int>(step)) * rows;
  job.row = row;
  const Range seen = tiles_seen<kKeys>(job, row, rows);
  job.last_tile = seen.last;
  job.tiles = seen.last - seen.first + 1;
#pragma unroll 1
  for (int group = 0; 64 * group < rows; ++group) {
    job.seen[group] = tiles_seen<kKeys>(job, row + 64 * group, 64);
    job.whole[group] = tiles_seen_by_all<kKeys>(job, row + 64 * group, 64);
  }
}

// The producer is done with the job before the one at `jobs` long since, but says so only when few
// tiles of this one are left to load: a job taken early is not left for a block that is free.
__device__ inline void release_before(tile::RingBarriers<kQueryJobs>& ring,
                                      const tile::RingPlace<kQueryJobs>& jobs) {
  if (jobs.count == 0) return;
  __syncwarp();
  tile::RingPlace<kQueryJobs>{jobs.count - 1}.release(ring);
}

// The warp that decides what comes next. `unseeing`: also rows that see no key.
template <int kKeys, class Shared>
__device__ void schedule_queries(Shared& shared, const QueryJobs& p, int rows, bool unseeing) {
  tile::RingPlace<kQueryJobs> jobs;
  std::uint32_t index = blockIdx.x;
  bool more = true;
  while (more) {
    tile::RingPlace<kQueryJobs>{jobs.count + static_cast<std::uint32_t>(kQueryJobs - p.places)}
        .wait_empty(shared.jobs);
    if (tile::lane() == 0) {
      QueryJob& job = shared.job[jobs.stage()];
      do {  // a short document has fewer tiles than the longest
        make_query_job<kKeys>(p, rows, index, job);
        index = p.next_job != nullptr ? gridDim.x + atomicAdd(p.next_job, 1u) : index + gridDim.x;
      } while (job.tiles >= 0 && (job.row >= job.at.q_count || (job.tiles == 0 && !unseeing)));
      more = job.tiles >= 0;
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
    }
    more = __shfl_sync(0xffffffffu, more, 0);
    jobs.next();
  }
}

}  // namespace tilefold::attention
