#include "base/json.h"
#include "trainer/report/layers.h"
#include "trainer/report/memory_report.h"

namespace tilefold {
namespace {

void write_layers(JsonWriter& json, const Plan& plan) {
  json.key("layers").begin_array();
  for (const LayerRow& row : layer_rows(plan)) {
    json.newline().begin_object().member("name", row.name);
    json.member("saved_bytes", row.of(Kind::saved)).key("tensors").begin_array();
    for (const PlannedTensor* tensor : row.tensors) {
      json.newline().begin_object().member("name", tensor->name).key("shape").begin_array();
      for (int i = 0; i < tensor->shape.rank; ++i) json.value(tensor->shape[i]);
      json.end_array()
          .member("dtype", name_of(tensor->dtype))
          .member("kind", name_of(tensor->kind))
          .member("bytes", tensor->bytes)
          .end_object();
    }
    json.end_array().end_object();
  }
  json.newline().end_array();
}

void write_kinds(JsonWriter& json, const char* name, const Plan& plan) {
  const KindTotals totals = plan.totals();
  json.newline().key(name).begin_object();
  for (int kind = 0; kind < kKinds; ++kind)
    json.member(name_of(static_cast<Kind>(kind)), totals.bytes[kind]);
  json.member("padding", totals.padding).end_object();
}

// -1, not measured, is null.
void write_measured(JsonWriter& json, const char* name, std::int64_t bytes) {
  json.key(name);
  if (bytes < 0)
    json.null();
  else
    json.value(bytes);
}

}  // namespace

std::string plan_json(const Plan& plan) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  write_layers(json, plan);
  json.newline().member("arena_bytes", plan.arena_bytes());
  write_kinds(json, "totals", plan);
  json.newline().end_object();
  return text + "\n";
}

std::string memory_json(const Plan& plan, const MeasuredMemory& measured) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  write_layers(json, plan);
  json.newline().key("totals").begin_object().member("predicted", plan.arena_bytes());
  write_measured(json, "measured", measured.arenas);
  json.end_object();
  write_kinds(json, "kinds", plan);
  json.newline().key("process").begin_object();
  write_measured(json, "resident_start", measured.resident_start);
  write_measured(json, "resident_peak", measured.resident_peak);
  write_measured(json, "outside_arenas", measured.outside);
  if (measured.nccl >= 0) json.member("nccl", measured.nccl);
  write_measured(json, "device_start", measured.device_start);
  write_measured(json, "device_end", measured.device_end);
  json.end_object().newline().end_object();
  return text + "\n";
}

}  // namespace tilefold
