#include "memory/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/round.h"

namespace tilefold {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 61;  // sums with padding fit in 64 bits
constexpr std::int64_t kPage = 4096;                        // what the system hands out

bool meet(const PlannedTensor& a, const PlannedTensor& b) {
  return a.born <= b.last && b.born <= a.last;
}

// Sets the offsets of one phase's tensors; returns the bytes that they span.
std::int64_t place_phase(std::vector<PlannedTensor>& tensors, int phase,
                         const PlanOptions& options) {
  std::vector<PlannedTensor*> order;
  for (PlannedTensor& t : tensors)
    if (t.phase == phase && t.bytes > 0) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const PlannedTensor* a, const PlannedTensor* b) {
    return a->bytes > b->bytes;
  });
  std::vector<PlannedTensor*> placed;  // by offset
  std::int64_t span = 0;
  for (PlannedTensor* t : order) {
    const std::int64_t need = footprint(*t, options);
    std::int64_t at = 0;
    for (const PlannedTensor* other : placed) {
      if (!meet(*t, *other)) continue;
      if (other->offset >= at + need) break;  // the hole below `other` is wide enough
      at = std::max(at, other->offset + footprint(*other, options));
    }
    t->offset = at;
    span = std::max(span, at + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), t,
                                   [](const PlannedTensor* a, const PlannedTensor* b) {
                                     return a->offset < b->offset;
                                   }),
                  t);
  }
  return span;
}

PlannedTensor describe(std::string layer, std::string name, const Shape& shape, DType dtype,
                       Kind kind) {
  PlannedTensor t;
  t.layer = std::move(layer);
  t.name = std::move(name);
  t.shape = shape;
  t.dtype = dtype;
  t.kind = kind;
  try {
    t.bytes = product({shape.numel(), size_of(dtype)});
  } catch (const UsageError&) {
    throw UsageError(str(t.layer, ": tensor '", t.name, "' ", shape.text(), " ", name_of(dtype),
                         " is larger than every memory; use a shorter context, a smaller "
                         "micro-batch or model, or tiled attention"));
  }
  expect(t.bytes >= 0, "a planned tensor has a negative size");
  return t;
}

// Bytes alive at each step of a phase, of the tensors added so far.
class Timeline {
 public:
  // Returns the most bytes alive at a step of the tensor's life.
  std::int64_t add(const PlannedTensor& t) {
    if (std::ssize(alive_) <= t.last) alive_.resize(static_cast<std::size_t>(t.last) + 1);
    std::int64_t most = 0;
    for (int s = t.born; s <= t.last; ++s)
      most = std::max(most, alive_[static_cast<std::size_t>(s)] += t.bytes);
    return most;
  }
  int fullest() const {
    return static_cast<int>(std::max_element(alive_.begin(), alive_.end()) - alive_.begin());
  }

 private:
  std::vector<std::int64_t> alive_;
};

}  // namespace

std::string_view name_of(Kind kind) {
  constexpr std::string_view kNames[kKinds] = {"weight",        "gradient",   "optimizer",
                                               "saved",         "recomputed", "workspace",
                                               "communication", "input",      "cache"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t footprint(const PlannedTensor& tensor, const PlanOptions& options) {
  constexpr std::int64_t kAlignment = 64;  // a cache line, and the widest vector load
  return round_up(tensor.bytes, kAlignment) + round_up(options.guard_bytes, kAlignment);
}

std::int64_t KindTotals::sum() const {
  return std::accumulate(std::begin(bytes), std::end(bytes), padding);
}

int Plan::largest_phase() const {
  if (phase_bytes_.empty()) return -1;
  return static_cast<int>(std::max_element(phase_bytes_.begin(), phase_bytes_.end()) -
                          phase_bytes_.begin());
}

KindTotals Plan::totals() const {
  const int phase = largest_phase();
  Timeline timeline;
  for (const PlannedTensor& t : tensors_)
    if (t.phase == phase) timeline.add(t);
  const int step = timeline.fullest();

  KindTotals totals;
  for (const PlannedTensor& t : tensors_) {
    const bool alive = t.phase < 0 || (t.phase == phase && t.born <= step && step <= t.last);
    if (alive) totals.bytes[static_cast<int>(t.kind)] += t.bytes;
  }
  totals.padding = arena_bytes() - totals.sum();
  return totals;
}

TensorId Plan::first_over(std::int64_t limit) const {
  if (arena_bytes() <= limit) return kNoTensor;
  std::int64_t persistent = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].phase >= 0) continue;
    persistent += tensors_[i].bytes;
    if (persistent > limit) return static_cast<TensorId>(i);
  }
  std::vector<Timeline> timelines(phases_.size());
  TensorId top = kNoTensor;  // the one that ends last in its arena
  std::int64_t top_end = -1;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const PlannedTensor& t = tensors_[i];
    if (t.phase < 0) continue;
    if (persistent + timelines[static_cast<std::size_t>(t.phase)].add(t) > limit)
      return static_cast<TensorId>(i);
    if (t.offset + t.bytes > top_end) {
      top = static_cast<TensorId>(i);
      top_end = t.offset + t.bytes;
    }
  }
  // Only padding is too much.
  return top != kNoTensor ? top : static_cast<TensorId>(tensors_.size()) - 1;
}

TensorId PlanBuilder::persistent(std::string layer, std::string name, const Shape& shape,
                                 DType dtype, Kind kind) {
  tensors_.push_back(describe(std::move(layer), std::move(name), shape, dtype, kind));
  return static_cast<TensorId>(tensors_.size()) - 1;
}

int PlanBuilder::phase(std::string name) {
  phases_.push_back(std::move(name));
  return static_cast<int>(phases_.size()) - 1;
}

TensorId PlanBuilder::scratch(std::string layer, std::string name, const Shape& shape, DType dtype,
                              Kind kind, int born, int last) {
  expect(!phases_.empty(), "a scratch tensor is declared in a phase");
  expect(0 <= born && born <= last, "a tensor is born before it is last read");
  PlannedTensor t = describe(std::move(layer), std::move(name), shape, dtype, kind);
  t.phase = static_cast<int>(phases_.size()) - 1;
  t.born = born;
  t.last = last;
  tensors_.push_back(std::move(t));
  return static_cast<TensorId>(tensors_.size()) - 1;
}

void PlanBuilder::extend(TensorId id, int step) {
  PlannedTensor& t = tensors_[static_cast<std::size_t>(id)];
  expect(t.phase >= 0 && step >= t.born, "a life is extended to a step before its birth");
  t.last = std::max(t.last, step);
}

Plan PlanBuilder::build(const PlanOptions& options) const {
  const double sum = std::accumulate(
      tensors_.begin(), tensors_.end(), 0.0,
      [](double bytes, const PlannedTensor& t) { return bytes + static_cast<double>(t.bytes); });
  if (sum > static_cast<double>(kMostBytes))
    throw UsageError(str("the plan's tensors have ", sum,
                         " bytes together, more than every memory; use a shorter context, a "
                         "smaller micro-batch or model"));
  Plan plan;
  plan.tensors_ = tensors_;
  plan.phases_ = phases_;
  plan.options_ = options;
  // In declaration order, so that the gradients of a layer follow each other.
  std::int64_t end = 0;
  for (PlannedTensor& t : plan.tensors_) {
    if (t.phase >= 0 || t.bytes == 0) continue;
    t.offset = end;
    end += footprint(t, options);
  }
  plan.persistent_bytes_ = round_up(end, kPage);
  for (int phase = 0; phase < static_cast<int>(phases_.size()); ++phase) {
    const std::int64_t span = round_up(place_phase(plan.tensors_, phase, options), kPage);
    plan.phase_bytes_.push_back(span);
    plan.scratch_bytes_ = std::max(plan.scratch_bytes_, span);
  }
  return plan;
}

}  // namespace tilefold
