// The two arenas of a plan, taken from a device in one piece each, and the watch over them.
//
// With Watch::on, on the CPU only: at each step newborn and dead tensors are filled with a NaN
// pattern (what is read outside its life becomes visible), guard zones are compared with theirs,
// and the high-water mark of written bytes is kept, so that a test can show that all that was
// planned is used and nothing else touched. Without it a step costs nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "device/device.h"
#include "memory/plan.h"

namespace tilefold {

enum class Watch : std::uint8_t { off, on };

class Arena {
 public:
  // Throws Error naming the layer and tensor that does not fit if the plan exceeds `limit` bytes
  // (0: no limit). REQUIRES for Watch::on: a CPU device and a plan with guards.
  Arena(Device& device, const Plan& plan, std::int64_t limit = 0, Watch watch = Watch::off);
  ~Arena();

  const Plan& plan() const { return plan_; }
  Tensor tensor(TensorId id) const;  // kNoTensor gives an empty view
  // The persistent arena and the scratch arena, as the device handed them out.
  std::array<std::span<const std::byte>, 2> memory() const;

  // Called by whoever runs the phase, as each step starts. Steps do not go back within a pass.
  // Inputs may be filled before begin(); what lives to the last step may be read after end(), until
  // the next begin(); caches keep their content from pass to pass of the same phase.
  // With the watch: throws Error naming the tensor behind which something was written.
  void begin(int phase);
  void step(int step);
  void end();

  // Watch::on only: tensors of which some planned byte was never written, by "layer/name"; of the
  // phases that ran, and the persistent ones.
  std::vector<std::string> untouched() const;

 private:
  struct Watcher;
  const Plan& plan_;
  std::unique_ptr<Memory> persistent_, scratch_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace tilefold
