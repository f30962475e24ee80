// What a command works with, opened in the right order: device, data, plan, arena.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/arena.h"
#include "device/device.h"
#include "trainer/data/dataset.h"
#include "trainer/report/resident.h"
#include "trainer/run_plan.h"

namespace tilefold {

// Stays where it was made: the arena refers to the plan.
struct Session {
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Config config;  // with model.vocab resolved
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Dataset> data;
  RunPlan run;
  ResidentMemory before;                 // of the process, without the arenas
  std::int64_t device_used_before = -1;  // bytes of the device before the arenas
  std::unique_ptr<Arena> arena;

  Shard shard;  // of the optimizer state, that is here

  Context context() { return {*device, *stream}; }
};

// Opens the device (of several GPUs, the one numbered `gpu`) and data of `config`, plans a training
// run and takes its arenas. Makes no collective calls. Throws Error naming the layer and tensor
// that pass memory.limit.
std::unique_ptr<Session> open_training(const Config& config, const Communicator& comm, int gpu);

// The config with everything that "0: from the data" leaves open.
Config resolve(Config config, const Dataset& data);

// memory.limit, or what is free now: of the host shared by its ranks; of the GPU, less what libraries
// will take there.
std::int64_t memory_limit(const Config& config, const Device& device, const Communicator& comm);

}  // namespace tilefold
