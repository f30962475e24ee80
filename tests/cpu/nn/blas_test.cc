// Products of any layout, and the code they run on.
#include "cpu/blas.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

TEST_CASE("gemm: every transposition, leading dimension and beta by plain loops") {
  const Cpu cpu(1);  // prepares the library
  const std::int64_t m = 5, n = 7, k = 3, ld = 11;
  const Values a = normal_values(ld * ld, 1), b = normal_values(ld * ld, 2);
  const Values start = normal_values(ld * ld, 3);
  for (const cpu::Trans ta : {cpu::Trans::no, cpu::Trans::yes})
    for (const cpu::Trans tb : {cpu::Trans::no, cpu::Trans::yes})
      for (const double beta : {0.0, 1.0}) {
        Values c = beta == 0 ? Values(start.size(), std::nan("")) : start;
        cpu::gemm(ta, tb, m, n, k, 2.0, a.data(), ld, b.data(), ld, beta, c.data(), ld);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = beta == 0 ? 0 : start[static_cast<std::size_t>(i * ld + j)];
            for (std::int64_t l = 0; l < k; ++l)
              sum += 2 *
                     a[static_cast<std::size_t>(ta == cpu::Trans::no ? i * ld + l : l * ld + i)] *
                     b[static_cast<std::size_t>(tb == cpu::Trans::no ? l * ld + j : j * ld + l)];
            REQUIRE(c[static_cast<std::size_t>(i * ld + j)] == Approx(sum).epsilon(1e-12));
          }
      }
}

// Bytes of address space of this process.
rlim_t address_space() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

TEST_CASE("without address space for OpenBLAS's buffers there is an Error, not a wait for ever") {
  const auto opens = [](rlim_t more, std::int64_t allocated) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit bound{address_space() + more, RLIM_INFINITY};
      setrlimit(RLIMIT_AS, &bound);
      try {
        const auto device = open_cpu_device(2);
        const auto memory = device->allocate(allocated);
      } catch (const Error&) {
        _exit(3);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(opens(200 << 20, 1 << 10) == 3);  // one buffer of two
  CHECK(opens(rlim_t{1} << 30, 1 << 10) == 0);
  CHECK(opens(rlim_t{1} << 30, 900 << 20) == 3);  // the arena leaves too little
}

TEST_CASE("a processor with AVX2 does not run the library's SSE3 code") {
  if (!__builtin_cpu_supports("avx2") || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  const Cpu cpu(1);
  REQUIRE(cpu::blas_code() != "Prescott");
}

}  // namespace
}  // namespace tilefold::test
