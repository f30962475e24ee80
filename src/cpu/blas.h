// OpenBLAS behind two functions, row-major, always single-threaded: callers split the work into
// fixed blocks and run those in parallel.
#pragma once

#include <cstdint>
#include <string_view>

namespace tilefold::cpu {

enum class Trans : bool { no, yes };

// c[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c; ld*: elements from one stored row to the next.
void gemm(Trans trans_a, Trans trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc);
void gemm(Trans trans_a, Trans trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
          double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
          double beta, double* c, std::int64_t ldc);

// Once, before the first product: one thread, and code for the processor at hand.
void prepare_blas();
// Throws Error unless the system would give the address space that OpenBLAS takes when `callers`
// threads compute: without it OpenBLAS asks again and again, for ever.
void require_blas_buffers(int callers);
// OpenBLAS's name of the code in use: "Haswell", "SkylakeX".
std::string_view blas_code();

}  // namespace tilefold::cpu
