// Jobs of the kernels that go over keys: one is (document or batch, key head, tile of keys), and
// its steps are the query tiles, of all heads of the group, that see the keys.
#pragma once

#include "kernels/attention/hopper_backward_rows.cuh"
#include "kernels/tile/ring.cuh"

namespace tilefold::attention {

constexpr std::uint32_t kDownSection = 4;  // pairs whose key tiles are taken in turn

struct KeyJob {
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

// The steps of a job: query tile after query tile, of each all heads. So a key tile's steps are the
// first, or the last, of those of the next tile, and neither waits for the other between heads.
struct StepPlace {
  int left, head, tile;

  __device__ __forceinline__ StepPlace(const KeyJob& job, int group)
      : left(tile::uniform(job.count) * group),
        head(job.key_head * group),
        tile(job.first + (job.down ? 0 : job.count - 1)) {}
  __device__ __forceinline__ bool more() const { return left > 0; }
  __device__ __forceinline__ void next(const KeyJob& job, int group) {
    --left;
    if (++head < (job.key_head + 1) * group) return;
    head -= group;
    tile += job.down ? 1 : -1;
  }
};

// Fills a job in shared memory.
template <int kRows, int kKeys>
__device__ inline void make_key_job(const BackwardParams& p, std::uint32_t index, KeyJob& job) {
  const auto tiles = static_cast<std::uint32_t>(p.tiles_k);
  if (index >= p.pairs * tiles) {
    job.key = -1;
    job.at = {0, 0, 0, 0};
    return;
  }
  const std::uint32_t down_jobs = p.down_pairs * tiles;
  job.down = index < down_jobs;
  const std::uint32_t begin = job.down ? 0 : p.down_pairs;  // first pair of this order
  const std::uint32_t end = job.down ? p.down_pairs : p.pairs;
  const std::uint32_t size = job.down ? kDownSection : p.section;
  if (!job.down) index -= down_jobs;
  const std::uint32_t section = index / (size * tiles);
  const std::uint32_t within = index - section * size * tiles;
  const std::uint32_t pairs = min(size, end - begin - section * size);
  const std::uint32_t step = within / pairs;
  const std::uint32_t pair = begin + section * size + within - step * pairs;
  const auto heads = static_cast<std::uint32_t>(p.key_heads);
  const auto sequence = static_cast<int>(pair / heads);
  const int document = p.documents.q ? sequence : 0;
  job.key_head = static_cast<int>(pair % heads);
  job.batch = p.documents.q ? 0 : sequence;
  const Extent at = extent_of(p.documents, document, p.seq_q, p.seq_k);
  const Diagonal d = diagonal_of(at, p.window);
  job.at = at;
  job.diagonal = d;
  job.tile = static_cast<int>(job.down ? tiles - 1 - step : step);
  job.tile_base = first_query_tile<kRows>(p, at, document);
  const int key = job.tile * kKeys;
  job.key = key;
  // Queries that see some of the keys, and those that see all of them.
  const int last_key = min(key + kKeys, at.k_count) - 1;
  const int first = max(key - d.off - d.right, 0),
            last = min(last_key - d.off + d.left, at.q_count - 1);
  job.first = first / kRows;
  job.count = last_key < key || last < first ? 0 : last / kRows - first / kRows + 1;
  // A tile beyond the keys is never seen whole.
  if (key + kKeys > at.k_count) {
    job.whole = {at.q_count, -1};
    return;
  }
  const int whole_first = max(last_key - d.off - d.right, 0),
            whole_last = min(key - d.off + d.left, at.q_count - 1);
  // The last query tile may end beyond the document: its tail has p = 0 by its offsets.
  job.whole = {(whole_first + kRows - 1) / kRows,
               whole_last == at.q_count - 1 ? whole_last / kRows : (whole_last + 1) / kRows - 1};
}

// Takes a job only when it is about to be needed: others may wait for a job that is taken. After
// each, `beside` has the one before.
template <class Tiles, class Shared, class Beside>
__device__ __forceinline__ void schedule_keys(Shared& shared, const BackwardParams& p,
                                              Beside beside) {
  tile::RingPlace<Shared::kJobs> jobs;
  for (bool more = true; more; jobs.next()) {
    jobs.wait_empty(shared.jobs);
    if (jobs.count > 0) ptx::mbarrier_wait(&shared.want, (jobs.count - 1) & 1);
    KeyJob& job = shared.job[jobs.stage()];
    if (tile::lane() == 0) {
      do {  // a short document has fewer tiles than the longest
        make_key_job<Tiles::kRows, Tiles::kKeys>(p, atomicAdd(p.next_job, 1u), job);
      } while (job.key >= job.at.k_count);
      ptx::mbarrier_arrive(&shared.jobs.full[jobs.stage()]);
    }
    __syncwarp();
    if (jobs.count > 0) beside(shared.job[(jobs.count - 1) % Shared::kJobs], jobs.count - 1);
    more = shared.job[jobs.stage()].key >= 0;
  }
}

}  // namespace tilefold::attention
