#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "trainer/report/layers.h"
#include "trainer/report/memory_report.h"

namespace tilefold {
namespace {

// Kinds that a layer's row adds up as "other": they share memory, so their sum is no peak.
constexpr Kind kOther[] = {Kind::recomputed, Kind::workspace, Kind::communication, Kind::input,
                           Kind::cache};

__attribute__((format(printf, 2, 3))) void add(std::string& text, const char* format, ...) {
  char line[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  text += line;
}

// 12,345,678
std::string digits(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

// Bytes for a table's cell: nothing looks like nothing.
std::string cell(std::int64_t bytes) { return bytes == 0 ? "-" : human_bytes(bytes); }

std::int64_t other_bytes(const LayerRow& row) {
  std::int64_t bytes = 0;
  for (const Kind kind : kOther) bytes += row.of(kind);
  return bytes;
}

const LayerRow* find_row(const std::vector<LayerRow>& rows, const std::string& name) {
  const auto at =
      std::find_if(rows.begin(), rows.end(), [&](const LayerRow& r) { return r.name == name; });
  return at == rows.end() ? nullptr : &*at;
}

void add_tensors(std::string& text, const std::vector<LayerRow>& rows,
                 const std::vector<LayerRow>& naive_rows) {
  add(text, "%-26s %-22s %-5s %-13s %16s\n", "layer, tensor", "shape", "dtype", "kind", "bytes");
  for (const LayerGroup& group : group_layers(rows)) {
    const LayerRow& row = rows[group.first];
    add(text, "\n%s%s\n", group.name.c_str(), group.count() > 1 ? ", each" : "");
    for (const PlannedTensor* t : row.tensors)
      add(text, "  %-24s %-22s %-5s %-13s %16s %10s\n", t->name.c_str(), t->shape.text().c_str(),
          std::string(name_of(t->dtype)).c_str(), std::string(name_of(t->kind)).c_str(),
          digits(t->bytes).c_str(), human_bytes(t->bytes).c_str());
    const LayerRow* naive = find_row(naive_rows, row.name);
    const std::int64_t saved = row.of(Kind::saved);
    if (saved == 0 && (naive == nullptr || naive->of(Kind::saved) == 0)) continue;
    add(text, "  %-67s %16s %10s", "saved for backward", digits(saved).c_str(),
        human_bytes(saved).c_str());
    if (naive != nullptr && naive->of(Kind::saved) != saved)
      add(text, "; with naive attention %s", human_bytes(naive->of(Kind::saved)).c_str());
    text += "\n";
  }
}

void add_totals(std::string& text, const Plan& plan, const Plan* naive) {
  const KindTotals totals = plan.totals();
  const KindTotals others = naive != nullptr ? naive->totals() : KindTotals{};
  const auto line = [&](const std::string& name, std::int64_t bytes, std::int64_t other) {
    if (bytes == 0 && other == 0) return;
    add(text, "  %-16s %20s %10s", name.c_str(), digits(bytes).c_str(), human_bytes(bytes).c_str());
    if (naive != nullptr)
      add(text, " %24s %10s", digits(other).c_str(), human_bytes(other).c_str());
    text += "\n";
  };
  add(text, "\n%-18s %20s %10s", "alive at the peak", "bytes", "");
  if (naive != nullptr) add(text, " %35s", "with naive attention");
  text += "\n";
  for (int kind = 0; kind < kKinds; ++kind)
    line(std::string(name_of(static_cast<Kind>(kind))), totals.bytes[kind], others.bytes[kind]);
  line("padding", totals.padding, others.padding);
  line("arenas", plan.arena_bytes(), naive != nullptr ? naive->arena_bytes() : 0);
}

void add_phases(std::string& text, const Plan& plan) {
  add(text,
      "persistent %s, scratch %s (the largest of:", human_bytes(plan.persistent_bytes()).c_str(),
      human_bytes(plan.scratch_bytes()).c_str());
  for (int phase = 0; phase < static_cast<int>(plan.phases().size()); ++phase)
    add(text, "%s %s %s", phase > 0 ? "," : "",
        plan.phases()[static_cast<std::size_t>(phase)].c_str(),
        human_bytes(plan.scratch_bytes(phase)).c_str());
  text += ")\n";
}

void add_layers(std::string& text, const Plan& plan, const Plan* naive) {
  const std::vector<LayerRow> rows = layer_rows(plan);
  const std::vector<LayerRow> naive_rows =
      naive != nullptr ? layer_rows(*naive) : std::vector<LayerRow>{};
  add(text, "%-20s %10s %10s %10s %10s %10s", "layer", "weights", "gradients", "optimizer", "saved",
      "other");
  if (naive != nullptr) add(text, " %13s", "saved, naive");
  text += "\n";
  for (const LayerGroup& group : group_layers(rows)) {
    const LayerRow& row = rows[group.first];
    const std::string name = group.name + (group.count() > 1 ? ", each" : "");
    add(text, "%-20s %10s %10s %10s %10s %10s", name.c_str(), cell(row.of(Kind::weight)).c_str(),
        cell(row.of(Kind::gradient)).c_str(), cell(row.of(Kind::optimizer)).c_str(),
        cell(row.of(Kind::saved)).c_str(), cell(other_bytes(row)).c_str());
    const LayerRow* other = find_row(naive_rows, row.name);
    if (other != nullptr) add(text, " %13s", cell(other->of(Kind::saved)).c_str());
    text += "\n";
  }
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, kUnits[unit]);
  return text;
}

std::string plan_table(const Plan& plan, const Plan* naive) {
  std::string text;
  add(text, "Memory plan: arenas of %s bytes, %s\n", digits(plan.arena_bytes()).c_str(),
      human_bytes(plan.arena_bytes()).c_str());
  add_phases(text, plan);
  text += "\n";
  add_tensors(text, layer_rows(plan),
              naive != nullptr ? layer_rows(*naive) : std::vector<LayerRow>{});
  add_totals(text, plan, naive);
  return text;
}

std::string memory_table(const Plan& plan, const Plan* naive, const MeasuredMemory& measured) {
  std::string text;
  add_layers(text, plan, naive);
  add_phases(text, plan);
  const std::int64_t predicted = plan.arena_bytes();
  add(text, "arenas    predicted %s bytes", digits(predicted).c_str());
  if (measured.arenas >= 0)
    add(text, ", measured %s, difference %s", digits(measured.arenas).c_str(),
        digits(measured.arenas - predicted).c_str());
  if (naive != nullptr)
    add(text, "; with naive attention %s", digits(naive->arena_bytes()).c_str());
  text += "\n";
  if (measured.resident_start >= 0 && measured.resident_peak >= 0) {
    const std::int64_t above = measured.resident_peak - measured.resident_start;
    add(text, "process   %s resident at the start, %s at the peak: %s above, arenas are %s of it\n",
        human_bytes(measured.resident_start).c_str(), human_bytes(measured.resident_peak).c_str(),
        human_bytes(above).c_str(), human_bytes(predicted).c_str());
  }
  if (measured.outside >= 0)
    add(text, "          %s taken outside the arenas: by libraries, threads, batches on the host\n",
        human_bytes(measured.outside).c_str());
  if (measured.device_start >= 0 && measured.device_end >= 0) {
    const std::int64_t more = measured.device_end - measured.device_start - measured.arenas -
                              std::max<std::int64_t>(measured.nccl, 0);
    add(text, "device    %s bytes in use, as the driver counts:\n",
        digits(measured.device_end).c_str());
    add(text, "  %-54s %16s\n", "before the arenas (the driver's context, other programs)",
        digits(measured.device_start).c_str());
    add(text, "  %-54s %16s\n", "arenas", digits(measured.arenas).c_str());
    if (measured.nccl >= 0)
      add(text, "  %-54s %16s\n", "NCCL (channels, buffers)", digits(measured.nccl).c_str());
    add(text, "  %-54s %16s (%.2f%% of all)\n", "since (cuBLAS, code of kernels, rounding)",
        digits(more).c_str(),
        100 * static_cast<double>(more) / static_cast<double>(measured.device_end));
  }
  return text;
}

}  // namespace tilefold
