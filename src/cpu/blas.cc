#include "cpu/blas.h"

#include <cblas.h>

#include <limits>

#include "base/error.h"

// OpenBLAS's own; its header declares it only where cblas.h is OpenBLAS's.
extern "C" void openblas_set_num_threads(int threads);

namespace tilefold::cpu {
namespace {

CBLAS_TRANSPOSE code(Trans t) { return t == Trans::yes ? CblasTrans : CblasNoTrans; }

// The library's sizes are 32-bit; callers block far below that.
int narrow(std::int64_t size) {
  expect(size >= 0 && size <= std::numeric_limits<int>::max(), "BLAS size beyond 32 bits");
  return static_cast<int>(size);
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

void use_single_threaded_blas() { openblas_set_num_threads(1); }

}  // namespace tilefold::cpu
