#include "base/parallel.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace tilefold {

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake, done;
  std::uint64_t round = 0;   // guarded by mutex; a new value wakes the workers
  int busy = 0;              // guarded by mutex
  bool stop = false;         // guarded by mutex
  std::exception_ptr error;  // guarded by mutex; the first one
  const FunctionRef<void(std::int64_t, int)>* body = nullptr;
  std::int64_t blocks = 0;
  std::atomic<std::int64_t> next{0};

  // Also where the pool could not be completed: workers that wait for a round must be sent home.
  ~State() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void run(int worker) {
    try {
      for (std::int64_t block; (block = next.fetch_add(1, std::memory_order_relaxed)) < blocks;)
        (*body)(block, worker);
    } catch (...) {
      next.store(blocks, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void loop(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      lock.unlock();
      run(worker);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  require(threads >= 1, "threads is ", threads, "; at least 1 is needed");
  State* state = state_.get();
  try {
    for (int w = 1; w < threads; ++w) state->workers.emplace_back([state, w] { state->loop(w); });
  } catch (const std::system_error& error) {
    throw Error(str("the system gives ", state->workers.size() + 1, " of ", threads, " threads (",
                    error.what(),
                    "; ulimit -u, -v, or a container's limit of processes); use "
                    "fewer: run.threads"));
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t blocks, FunctionRef<void(std::int64_t, int)> body) {
  State& s = *state_;
  if (blocks <= 0) return;
  s.body = &body;
  s.blocks = blocks;
  s.next.store(0, std::memory_order_relaxed);
  if (s.workers.empty() || blocks == 1) {
    s.run(0);
  } else {
    {
      std::lock_guard lock(s.mutex);
      ++s.round;
      s.busy = static_cast<int>(s.workers.size());
    }
    s.wake.notify_all();
    s.run(0);
    std::unique_lock lock(s.mutex);
    s.done.wait(lock, [&] { return s.busy == 0; });
  }
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

int allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int cores = CPU_COUNT(&set);
  return cores > 0 ? cores : 1;
}

}  // namespace tilefold
