#include "base/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/catch.h"

using namespace tilefold;

TEST_CASE("every block runs once, whatever the number of threads") {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (std::int64_t blocks : {0, 1, 2, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(blocks));
      pool.parallel_for(blocks, [&](std::int64_t block, int worker) {
        if (worker < 0 || worker >= threads) throw std::logic_error("worker out of range");
        ++runs[static_cast<std::size_t>(block)];
      });
      for (int r : runs) CHECK(r == 1);
    }
  }
}

TEST_CASE("a block may wait for the one before it") {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::atomic<std::int64_t> finished{0};
    pool.parallel_for(1000, [&](std::int64_t block, int) {
      while (finished.load() != block) std::this_thread::yield();
      finished.store(block + 1);
    });
    CHECK(finished.load() == 1000);
  }
}

TEST_CASE("a block's exception reaches the caller and the pool still works") {
  ThreadPool pool(3);
  CHECK_THROWS_AS(pool.parallel_for(100,
                                    [](std::int64_t block, int) {
                                      if (block == 7) throw std::runtime_error("seven");
                                    }),
                  std::runtime_error);
  int sum = 0;
  pool.parallel_for(1, [&](std::int64_t, int) { ++sum; });
  CHECK(sum == 1);
}

TEST_CASE("a pool that the system does not complete is an Error, not a wait for ever") {
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t now = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
    const rlimit bound{now + (64 << 20), RLIM_INFINITY};  // a few stacks
    setrlimit(RLIMIT_AS, &bound);
    try {
      ThreadPool pool(64);
    } catch (const Error&) {
      _exit(3);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
}
