#include "trainer/report/layers.h"

#include <algorithm>

namespace tilefold {
namespace {

bool alike(const LayerRow& a, const LayerRow& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const PlannedTensor* x, const PlannedTensor* y) {
                      return x->name == y->name && x->shape == y->shape && x->dtype == y->dtype &&
                             x->kind == y->kind;
                    });
}

// "layer 0" and "layer 11": "layers 0-11".
std::string range_name(const std::string& first, const std::string& last) {
  const std::size_t blank = first.rfind(' ');
  if (blank == std::string::npos || last.compare(0, blank + 1, first, 0, blank + 1) != 0)
    return first + " .. " + last;
  return first.substr(0, blank) + "s " + first.substr(blank + 1) + "-" + last.substr(blank + 1);
}

}  // namespace

std::vector<LayerRow> layer_rows(const Plan& plan) {
  const int phase = plan.largest_phase();
  std::vector<LayerRow> rows;
  for (const PlannedTensor& tensor : plan.tensors()) {
    if (tensor.phase >= 0 && tensor.phase != phase) continue;
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const LayerRow& r) { return r.name == tensor.layer; });
    if (row == rows.end()) {
      rows.emplace_back().name = tensor.layer;
      row = rows.end() - 1;
    }
    row->tensors.push_back(&tensor);
    row->bytes[static_cast<std::size_t>(tensor.kind)] += tensor.bytes;
  }
  return rows;
}

std::vector<LayerGroup> group_layers(const std::vector<LayerRow>& rows) {
  std::vector<LayerGroup> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!groups.empty() && alike(rows[groups.back().first], rows[i]))
      groups.back().last = i + 1;
    else
      groups.push_back({i, i + 1, rows[i].name});
  }
  for (LayerGroup& group : groups)
    if (group.count() > 1)
      group.name = range_name(rows[group.first].name, rows[group.last - 1].name);
  return groups;
}

}  // namespace tilefold
