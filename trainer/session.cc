#include "trainer/session.h"

#include <algorithm>

#include "base/error.h"
#include "trainer/ranks.h"

namespace tilefold {

Config resolve(Config config, const Dataset& data) {
  config.model.vocab = model_vocabulary(config, data.vocabulary());
  return config;
}

std::int64_t memory_limit(const Config& config, const Device& device, const Communicator& comm) {
  if (config.memory.limit > 0) return config.memory.limit;
  const std::int64_t free = device.free_bytes();
  if (device.info().kind == DeviceKind::cpu) return free / comm.local_size();
  // What comes behind the arenas: code of kernels and cuBLAS (5 MB on an H200); NCCL (670 MiB with
  // 16 channels, of which it opens 24).
  constexpr std::int64_t kCode = 64 << 20, kNccl = 1280 << 20;
  return std::max<std::int64_t>(1, free - kCode - (comm.size() > 1 ? kNccl : 0));
}

std::unique_ptr<Session> open_training(const Config& config, const Communicator& comm, int gpu) {
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.device = open_device(config.run.device, gpu, threads_of(config.run, comm.local_size()));
  s.stream = s.device->make_stream();
  s.data = open_dataset(config);
  s.config = resolve(config, *s.data);
  s.run = plan_training(s.config, s.device->info(), comm.size(), s.data->most_documents());
  s.shard = {.rank = s.run.shards > 1 ? comm.rank() : 0, .of = s.run.shards};
  s.before = resident_memory();
  s.device_used_before = s.device->used_bytes();
  s.arena = std::make_unique<Arena>(*s.device, s.run.plan, memory_limit(s.config, *s.device, comm),
                                    config.memory.check ? Watch::on : Watch::off);
  return session;
}

}  // namespace tilefold
