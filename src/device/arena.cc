#include "device/arena.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/round.h"

namespace tilefold {
namespace {

// 16-bit patterns that, repeated, are a NaN in f16, bf16, f32 and f64, and a negative integer that
// no token, target or position has.
constexpr std::uint64_t kPoison = 0xFFFBFFFBFFFBFFFBull;
constexpr std::uint64_t kGuard = 0xFFF3FFF3FFF3FFF3ull;

// REQUIRES: at and bytes are multiples of 8.
void fill(std::byte* at, std::int64_t bytes, std::uint64_t pattern) {
  auto* word = reinterpret_cast<std::uint64_t*>(at);
  std::fill(word, word + bytes / 8, pattern);
}

// The first byte that differs from the pattern, in words of 8; -1 if none does.
std::int64_t first_difference(const std::byte* at, std::int64_t bytes, std::uint64_t pattern) {
  const auto* word = reinterpret_cast<const std::uint64_t*>(at);
  for (std::int64_t i = 0; i < bytes / 8; ++i)
    if (word[i] != pattern) return i * 8;
  return -1;
}

// Elements that still hold the poison. Raw bytes are compared in words of 8: a single byte may well
// be the poison's.
std::int64_t unwritten(const std::byte* at, const PlannedTensor& tensor) {
  const std::int64_t unit = tensor.dtype == DType::u8 ? 8 : size_of(tensor.dtype);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i + unit <= tensor.bytes; i += unit)
    count += std::memcmp(at + i, &kPoison, static_cast<std::size_t>(unit)) == 0;
  return count;
}

}  // namespace

struct Arena::Watcher {
  enum class State : std::uint8_t { unborn, alive, dead };

  Watcher(const Plan& plan_, std::byte* persistent_, std::byte* scratch_)
      : plan(plan_),
        persistent(persistent_),
        scratch(scratch_),
        state(plan.tensors().size(), State::unborn),
        least_unwritten(plan.tensors().size(), -1),
        ran(plan.phases().size(), false) {
    fill(persistent, plan.persistent_bytes(), kPoison);
    fill(scratch, plan.scratch_bytes(), kPoison);
    for (std::size_t i = 0; i < state.size(); ++i)
      if (plan.tensors()[i].phase < 0 && plan.tensors()[i].bytes > 0) {
        state[i] = State::alive;
        set_guard(i);
      }
  }

  const PlannedTensor& planned(std::size_t i) const { return plan.tensors()[i]; }
  std::byte* at(std::size_t i) const {
    return (planned(i).phase < 0 ? persistent : scratch) + planned(i).offset;
  }
  // Its bytes, the rest up to the alignment (watched with the guard) and the guard.
  std::int64_t whole(std::size_t i) const { return footprint(planned(i), plan.options()); }
  void set_guard(std::size_t i) {
    const std::int64_t from = round_up(planned(i).bytes, 8);
    fill(at(i) + from, whole(i) - from, kGuard);
  }

  void note_unwritten(std::size_t i) {
    const std::int64_t now = unwritten(at(i), planned(i));
    std::int64_t& least = least_unwritten[i];
    least = least < 0 ? now : std::min(least, now);
  }

  void kill(std::size_t i) {
    note_unwritten(i);
    fill(at(i), whole(i), kPoison);
    state[i] = State::dead;
  }

  void check_guards() const {
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (state[i] != State::alive) continue;
      const std::int64_t from = round_up(planned(i).bytes, 8);
      const std::int64_t where = first_difference(at(i) + from, whole(i) - from, kGuard);
      require(where < 0, planned(i).layer, ": something was written ",
              from + where - planned(i).bytes, " bytes behind tensor '", planned(i).name, "' ",
              planned(i).shape.text(), ", before step ", step, " of phase ", phase_name());
    }
  }

  // Between the tensors that are alive everything still holds the poison.
  void check_gaps() {
    live.clear();
    for (std::size_t i = 0; i < state.size(); ++i)
      if (state[i] == State::alive && planned(i).phase >= 0) live.push_back(i);
    std::sort(live.begin(), live.end(), [this](std::size_t a, std::size_t b) {
      return planned(a).offset < planned(b).offset;
    });
    std::int64_t end = 0;
    const auto check = [&](std::int64_t until, const char* what, std::size_t i) {
      const std::int64_t where = first_difference(scratch + end, until - end, kPoison);
      require(where < 0, "scratch arena: byte ", end + where, ", of no tensor alive, was written ",
              what, i < state.size() ? planned(i).layer + "/" + planned(i).name : std::string(),
              ", before step ", step, " of phase ", phase_name());
    };
    for (std::size_t i : live) {
      check(planned(i).offset, "below ", i);
      end = planned(i).offset + whole(i);
    }
    check(plan.scratch_bytes(), "behind the last one", state.size());
  }

  std::string phase_name() const {
    return phase < 0 ? "none" : plan.phases()[static_cast<std::size_t>(phase)];
  }

  void begin(int to) {
    const bool same = to == phase;
    phase = to;
    step = -1;
    std::int64_t end = 0;
    live.clear();
    for (std::size_t i = 0; i < state.size(); ++i) {
      const PlannedTensor& t = planned(i);
      if (t.phase < 0 || t.bytes == 0) continue;
      const bool kept = t.phase == to &&
                        ((t.kind == Kind::input && t.born == 0) || (t.kind == Kind::cache && same));
      state[i] = kept ? State::alive : State::unborn;
      if (kept) live.push_back(i);
    }
    std::sort(live.begin(), live.end(), [this](std::size_t a, std::size_t b) {
      return planned(a).offset < planned(b).offset;
    });
    for (std::size_t i : live) {
      fill(scratch + end, planned(i).offset - end, kPoison);
      set_guard(i);
      end = planned(i).offset + whole(i);
    }
    fill(scratch + end, plan.scratch_bytes() - end, kPoison);
  }

  void advance(int to) {
    expect(phase >= 0 && to >= step, "steps go forward within a pass");
    check_guards();
    check_gaps();
    step = to;
    for (std::size_t i = 0; i < state.size(); ++i)
      if (planned(i).phase == phase && state[i] == State::alive && planned(i).last < to) kill(i);
    for (std::size_t i = 0; i < state.size(); ++i) {
      const PlannedTensor& t = planned(i);
      if (t.phase != phase || t.bytes == 0 || state[i] != State::unborn) continue;
      if (t.born <= to && to <= t.last) {
        state[i] = State::alive;
        set_guard(i);
      }
    }
  }

  void finish() {
    check_guards();
    check_gaps();
    for (std::size_t i = 0; i < state.size(); ++i)
      if (planned(i).phase == phase && state[i] == State::alive) note_unwritten(i);
    ran[static_cast<std::size_t>(phase)] = true;
  }

  const Plan& plan;
  std::byte* persistent;
  std::byte* scratch;
  int phase = -1, step = -1;
  std::vector<State> state;
  std::vector<std::int64_t> least_unwritten;  // elements, over the passes; -1: never alive
  std::vector<bool> ran;
  std::vector<std::size_t> live;  // scratch of check_gaps
};

Arena::Arena(Device& device, const Plan& plan, std::int64_t limit, Watch watch) : plan_(plan) {
  if (limit > 0 && plan.arena_bytes() > limit) {
    const PlannedTensor& t = plan[plan.first_over(limit)];
    throw Error(str(t.layer, ": tensor '", t.name, "' ", t.shape.text(), " ", name_of(t.dtype),
                    " (", t.bytes, " bytes, ", name_of(t.kind), ") does not fit: the plan needs ",
                    plan.arena_bytes(), " bytes, the limit is ", limit,
                    "; use a shorter context, a smaller micro-batch or tiled attention, or "
                    "raise memory.limit"));
  }
  persistent_ = device.allocate(plan.persistent_bytes());
  scratch_ = device.allocate(plan.scratch_bytes());
  if (watch == Watch::off) return;
  expect(device.info().kind == DeviceKind::cpu, "the watch is for the CPU");
  expect(plan.options().guard_bytes > 0, "the watch needs a plan with guards");
  watcher_ = std::make_unique<Watcher>(plan, persistent_->data(), scratch_->data());
}

Arena::~Arena() = default;

Tensor Arena::tensor(TensorId id) const {
  if (id == kNoTensor) return {};
  const PlannedTensor& t = plan_[id];
  std::byte* arena = (t.phase < 0 ? persistent_ : scratch_)->data();
  return Tensor(arena + t.offset, t.dtype, t.shape);
}

std::array<std::span<const std::byte>, 2> Arena::memory() const {
  const auto whole = [](const Memory& x) {
    return std::span<const std::byte>(x.data(), static_cast<std::size_t>(x.bytes()));
  };
  return {whole(*persistent_), whole(*scratch_)};
}

void Arena::begin(int phase) {
  if (watcher_) watcher_->begin(phase);
}

void Arena::step(int step) {
  if (watcher_) watcher_->advance(step);
}

void Arena::end() {
  if (watcher_) watcher_->finish();
}

std::vector<std::string> Arena::untouched() const {
  expect(watcher_ != nullptr, "untouched bytes are known with the watch only");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
    const PlannedTensor& t = plan_.tensors()[i];
    if (t.bytes == 0) continue;
    std::int64_t left;
    if (t.phase < 0) {
      left = unwritten(watcher_->at(i), t);
    } else {
      const std::size_t phase = static_cast<std::size_t>(t.phase);
      if (!watcher_->ran[phase]) continue;
      left = watcher_->least_unwritten[i];
    }
    if (left != 0) names.push_back(t.layer + "/" + t.name);
  }
  return names;
}

}  // namespace tilefold
