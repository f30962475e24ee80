// The memory plan: every tensor of a run, known before anything is allocated.
//
// Two arenas. The persistent one holds what lives as long as the run (weights, gradients, optimizer
// state, tables). The scratch one is shared by the phases (train, eval, update, generate), which do
// not run at the same time: its size is the largest phase's. In a phase time is counted in steps
// (one per piece of forward or backward work, numbered by whoever declares); a tensor owns its bytes
// from the step it is born in to the step it is last read in, both included, and tensors whose lives
// do not meet may share bytes.
//
// Offsets: largest first, each at the lowest place where it meets no tensor alive at the same time
// (greedy by size; Pisarchyk, Lee, "Efficient memory management for deep neural net inference",
// 2020). Aligned to 64 bytes; the arenas are whole pages. Persistent tensors lie in declaration order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace tilefold {

enum class Kind : std::uint8_t {
  weight, gradient, optimizer, saved, recomputed, workspace, communication, input, cache
};
constexpr int kKinds = 9;
std::string_view name_of(Kind kind);

using TensorId = std::int32_t;
constexpr TensorId kNoTensor = -1;

struct PlannedTensor {
  std::string layer;  // "embedding", "layer 0", ..., "head"; rows of the reports
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  Kind kind = Kind::saved;
  int phase = -1;          // -1: persistent
  int born = 0, last = 0;  // steps of the phase
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // in its arena, set by build()
};

struct PlanOptions {
  std::int64_t guard_bytes = 0;  // kept free after every tensor, so that a witness can watch it
};

// What a tensor takes in its arena: its bytes, aligned, and the guard behind it.
std::int64_t footprint(const PlannedTensor& tensor, const PlanOptions& options);

// bytes[kind], and what alignment, page rounding, guards and unfillable holes add.
struct KindTotals {
  std::int64_t bytes[kKinds] = {};
  std::int64_t padding = 0;
  std::int64_t sum() const;
};

class Plan {
 public:
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  const PlannedTensor& operator[](TensorId id) const {
    return tensors_[static_cast<std::size_t>(id)];
  }
  const std::vector<std::string>& phases() const { return phases_; }
  const PlanOptions& options() const { return options_; }
  std::int64_t persistent_bytes() const { return persistent_bytes_; }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }  // max over phases
  std::int64_t scratch_bytes(int phase) const { return phase_bytes_[static_cast<std::size_t>(phase)]; }
  std::int64_t arena_bytes() const { return persistent_bytes_ + scratch_bytes_; }
  // The phase whose scratch arena is the largest; -1 if there is none.
  int largest_phase() const;
  // What is alive at the moment the arenas' peak is reached (the persistent tensors, and the largest
  // phase's fullest step); with padding it sums to arena_bytes().
  KindTotals totals() const;
  // The first tensor, in declaration order, with which the bytes alive at some step pass `limit`;
  // kNoTensor if the arenas fit in it.
  TensorId first_over(std::int64_t limit) const;

 private:
  friend class PlanBuilder;
  std::vector<PlannedTensor> tensors_;
  std::vector<std::string> phases_;
  std::vector<std::int64_t> phase_bytes_;
  std::int64_t persistent_bytes_ = 0, scratch_bytes_ = 0;
  PlanOptions options_;
};

class PlanBuilder {
 public:
  TensorId persistent(std::string layer, std::string name, const Shape& shape, DType dtype,
                      Kind kind);
  // Starts a phase; scratch() adds to the latest one.
  int phase(std::string name);
  // REQUIRES: a phase was started, 0 <= born <= last.
  TensorId scratch(std::string layer, std::string name, const Shape& shape, DType dtype, Kind kind,
                   int born, int last);
  // Later reads: moves the end of a scratch tensor's life. REQUIRES: step >= its birth.
  void extend(TensorId id, int step);
  Plan build(const PlanOptions& options = {}) const;

 private:
  std::vector<PlannedTensor> tensors_;
  std::vector<std::string> phases_;
};

}  // namespace tilefold
