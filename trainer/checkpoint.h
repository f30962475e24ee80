// A run's state as one checkpoint file: what it holds, how it is written and read back.
//
//   texts    config (resolved YAML), vocabulary, plan (JSON)
//   numbers  step (updates done), consumed (samples), seed,
//            row_constants_first_sample, row_constants_samples: which batch they belong to
//   arrays   weights/LAYER/NAME, adam_m/LAYER/NAME, adam_v/LAYER/NAME      float32 (float64)
//            row_constants/LAYER/m and l  [samples, heads, seq] or [1, heads, tokens] when packed
//            row_constants/tokens, targets, positions, cu_seqlens: that batch
//
// Random state is seed and step: every draw is a function of them (Philox). Row constants are those
// of one forward without dropout of the saved weights over the last step's first micro-batch of
// rank 0, samples consumed - global_batch and on, so that any machine can replay them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint_file.h"
#include "trainer/session.h"

namespace tilefold {

// Where a run goes on.
struct ResumePoint {
  std::int64_t step = 0;      // updates done
  std::int64_t consumed = 0;  // samples seen
};

// The newest checkpoint of a directory that is whole; "" if it has no checkpoint. Newer ones that
// are damaged or cannot be read are named on stderr and passed over; Error if all are.
std::string newest_checkpoint(const std::string& directory);

// A checkpoint file, or the newest one of a run's directory. Throws Error if there is none.
std::string find_checkpoint(const std::string& file_or_run);

// Where ranks share out the optimizer state: the arrays of it as one, by their names in the file,
// on rank 0 (empty elsewhere, and where nothing is shared out). Collective. Host memory.
using WholeState = std::map<std::string, std::vector<std::byte>>;
WholeState gather_state(Communicator& comm, Session& session);

// Writes whole or not at all. `micro`: sequences of the batch for the row constants.
void save_checkpoint(const std::string& path, Session& session, const ResumePoint& at,
                     std::int64_t micro, const WholeState& gathered);

// After start_anew() or resume_from(), where optimizer state is shared out: the other ranks' parts
// of the weights. Collective; `comm` sums in the memory of the session's device.
void gather_weights(Communicator& comm, Session& session);

// Fresh weights, drawn from run.seed, and an optimizer that has seen nothing.
void start_anew(Session& session);

// Weights and optimizer state into the session's arena. Throws UsageError where the session's
// config differs in what a continued run may not change, Error naming a missing part.
ResumePoint resume_from(const std::string& path, Session& session);

// Weights alone, for a plan that has only those.
void load_weights(const CheckpointReader& file, const RunPlan& run, Arena& arena, Context ctx,
                  Shard shard = {});

// The config that a checkpoint was made with, with overrides applied.
Config config_of(const CheckpointReader& file, const std::vector<std::string>& overrides);

// Throws Error unless every rank holds the same bits in its weights. Collective.
void require_equal_weights(Communicator& comm, Session& session);

}  // namespace tilefold
