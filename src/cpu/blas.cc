#include "cpu/blas.h"

#include <cblas.h>
#include <sys/mman.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "base/error.h"

// OpenBLAS's own; its header declares them only where cblas.h is OpenBLAS's. The last two exist in
// builds that pick their code when loaded.
extern "C" {
void openblas_set_num_threads(int threads);
char* openblas_get_corename();
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}

namespace tilefold::cpu {
namespace {

CBLAS_TRANSPOSE code(Trans t) { return t == Trans::yes ? CblasTrans : CblasNoTrans; }

// The library's sizes are 32-bit; callers block far below that.
int narrow(std::int64_t size) {
  expect(size >= 0 && size <= std::numeric_limits<int>::max(), "BLAS size beyond 32 bits");
  return static_cast<int>(size);
}

// A processor newer than the library is unknown to it and gets SSE3 code ("Prescott"): measured 30
// GFLOP/s a core where the AVX-512 code reaches 140 (Emerald Rapids, OpenBLAS 0.3.21). What the
// processor can do decides instead, unless OPENBLAS_CORETYPE was set.
void use_code_of_processor() {
  constexpr const char* kVariable = "OPENBLAS_CORETYPE";
  if (blas_code() != "Prescott" || std::getenv(kVariable) != nullptr) return;
  if (gotoblas_dynamic_init == nullptr || gotoblas_dynamic_quit == nullptr) return;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  setenv(kVariable, avx512 ? "SkylakeX" : "Haswell", 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv(kVariable);
}

}  // namespace

void gemm(Trans trans_a, Trans trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, code(trans_a), code(trans_b), narrow(m), narrow(n), narrow(k), alpha,
              a, narrow(lda), b, narrow(ldb), beta, c, narrow(ldc));
}

void gemm(Trans trans_a, Trans trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
          double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
          double beta, double* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  cblas_dgemm(CblasRowMajor, code(trans_a), code(trans_b), narrow(m), narrow(n), narrow(k), alpha,
              a, narrow(lda), b, narrow(ldb), beta, c, narrow(ldc));
}

void prepare_blas() {
  openblas_set_num_threads(1);
  use_code_of_processor();
}

void require_blas_buffers(int callers) {
  constexpr std::size_t kBuffer = std::size_t{128} << 20;  // the largest of its processors' kernels
  std::vector<void*> buffers;
  for (int i = 0; i < callers; ++i) {
    void* at = mmap(nullptr, kBuffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) break;
    buffers.push_back(at);
  }
  for (void* at : buffers) munmap(at, kBuffer);
  const auto given = static_cast<int>(buffers.size());
  require(given == callers, "OpenBLAS takes ", kBuffer >> 20, " MiB of address space for each of ",
          callers, callers == 1 ? " thread" : " threads", ", and the system gives ", given,
          " of them (ulimit -v, or vm.overcommit_memory 2); allow more, or use fewer threads "
          "(run.threads, OPENBLAS_NUM_THREADS=1)");
}

std::string_view blas_code() { return openblas_get_corename(); }

}  // namespace tilefold::cpu
