// The memory plan as text and JSON. The report is the plan: nothing here measures.
//
// A report shows the tensors that make the arenas: the persistent ones, and those of the phase that
// sets the size of the scratch arena (the largest). saved_bytes of a layer is the sum of its
// tensors of kind `saved`. Sizes: GB is 1e9 bytes, GiB 2^30.
#pragma once

#include <cstdint>
#include <string>

#include "base/parallel.h"
#include "memory/plan.h"

namespace tilefold {

// "512 B", "1.95 GiB": three digits, binary units.
std::string human_bytes(std::int64_t bytes);

// What was measured beside the plan, in bytes; -1: not measured.
struct MeasuredMemory {
  std::int64_t arenas = -1;          // what the system handed out for the arenas
  std::int64_t outside = -1;         // what the process took besides: libraries, threads, batches
  std::int64_t nccl = -1;            // device memory that NCCL took when it was opened
  std::int64_t resident_start = -1;  // resident memory of the process before the arenas
  std::int64_t resident_peak = -1;   // and its largest since
  std::int64_t device_start = -1;    // in use on the GPU before the arenas, as its driver counts
  std::int64_t device_end = -1;      // and at the end
};

// `tilefold plan`: every tensor of every layer, totals by kind, arenas by phase. `naive`: the plan
// of the same run with materializing attention, for comparison; may be null.
std::string plan_table(const Plan& plan, const Plan* naive);
// The end of a run: a row per layer (equal neighbours share one), predicted beside measured.
std::string memory_table(const Plan& plan, const Plan* naive, const MeasuredMemory& measured);

// {"layers":[{"name","saved_bytes","tensors":[{"name","shape","dtype","kind","bytes"}]}],
//  "arena_bytes","totals":{kind: bytes, ..., "padding": bytes}}
std::string plan_json(const Plan& plan);
// memory.json: the same layers; "totals":{"predicted","measured"} in arena bytes; "kinds" as the
// plan's totals; "process": what was measured besides.
std::string memory_json(const Plan& plan, const MeasuredMemory& measured);

// The largest n in [1, most] with bytes(n) <= memory; 0 if there is none. REQUIRES: bytes does not
// fall as n grows.
std::int64_t longest_context(FunctionRef<std::int64_t(std::int64_t)> bytes, std::int64_t memory,
                             std::int64_t most);

}  // namespace tilefold
