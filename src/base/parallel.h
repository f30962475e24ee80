// parallel_for over fixed blocks. Which thread runs a block is not fixed; what a block computes is,
// so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace tilefold {

// A reference to a callable; never allocates. Valid as long as the callable lives.
template <class Signature>
class FunctionRef;
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, A... a) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<A>(a)...);
        }) {}
  R operator()(A... a) const { return call_(object_, std::forward<A>(a)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

// Not thread-safe: one caller at a time; no nesting. The first exception of a block is rethrown.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the calling thread is one of them; REQUIRES: threads >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Runs body(block, worker) for block in [0, blocks); worker in [0, threads()) picks scratch space.
  // Threads take blocks up in ascending order, so a block may wait for one of a smaller number.
  void parallel_for(std::int64_t blocks,
                    FunctionRef<void(std::int64_t block, int worker)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Cores this process may run on (its affinity mask), at least 1.
int allowed_cores();

}  // namespace tilefold
