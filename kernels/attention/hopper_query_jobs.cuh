// Jobs of the kernels that go over query rows: one is (document or batch, head, tile of query
// rows). The scheduling warp makes them one ahead, in shared memory.
#pragma once

#include "kernels/attention/hopper_jobs.h"
#include "kernels/tile/ring.cuh"

namespace tilefold::attention {

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

template <int kKeys>
__device__ inline Range tiles_of(const Range& keys) {
  if (keys.last < keys.first) return {0, -1};
  return {keys.first / kKeys, keys.last / kKeys};
}

// Fills a job in shared memory.
template <int kKeys>
__device__ inline void make_query_job(const QueryJobs& p, int rows, std::int64_t index,
                                      QueryJob& job) {
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
  job.sequence = sequence;
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

// The warp that decides what comes next. `unseeing`: also rows that see no key.
template <int kKeys, class Shared>
__device__ void schedule_queries(Shared& shared, const QueryJobs& p, int rows, bool unseeing) {
  tile::RingPlace<2> jobs;
  std::int64_t index = blockIdx.x;
  bool more = true;
  while (more) {
    jobs.wait_empty(shared.jobs);
    if (tile::lane() == 0) {
      QueryJob& job = shared.job[jobs.stage()];
      do {  // a short document has fewer tiles than the longest
        make_query_job<kKeys>(p, rows, index, job);
        index = p.next_job != nullptr
                    ? gridDim.x + static_cast<std::int64_t>(atomicAdd(p.next_job, 1u))
                    : index + gridDim.x;
      } while (job.tiles >= 0 && (job.row >= job.at.q_count || (job.tiles == 0 && !unseeing)));
      more = job.tiles >= 0;
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
    }
    more = __shfl_sync(0xffffffffu, more, 0);
    jobs.next();
  }
}

}  // namespace tilefold::attention
