// A plan by layers: the tensors a report shows, in order of first mention.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/plan.h"

namespace tilefold {

struct LayerRow {
  std::string name;
  std::vector<const PlannedTensor*> tensors;  // of the plan, which must live on
  std::array<std::int64_t, kKinds> bytes{};   // by kind, whenever they live
  std::int64_t of(Kind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
};

// Persistent tensors and those of the largest phase.
std::vector<LayerRow> layer_rows(const Plan& plan);

// Layers first .. last - 1 of a list that are alike but for their name.
struct LayerGroup {
  std::size_t first = 0, last = 0;
  std::string name;  // "layer 0", "layers 0-11"
  std::size_t count() const { return last - first; }
};
// Equal neighbours together.
std::vector<LayerGroup> group_layers(const std::vector<LayerRow>& rows);

}  // namespace tilefold
