#include "kernels/nn/matrix.h"

#include <cublasLt.h>

#include <source_location>

#include "base/error.h"
#include "contract/workspace.h"

namespace tilefold::nn {
namespace {

void check(cublasStatus_t status, std::source_location at = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(
        str(at.file_name(), ":", at.line(), ": cuBLASLt: ", cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

bool aligned(const void* data, std::int64_t row, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row * size_of(dtype) % 16 == 0;
}

// Bytes that the library may count on.
constexpr std::uint32_t kAligned = 16;
std::uint32_t least_alignment(const void* data, std::int64_t row, DType dtype) {
  return aligned(data, row, dtype) ? kAligned : static_cast<std::uint32_t>(size_of(dtype));
}

template <class Value>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
}
template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         Value value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

// The library's matrices are column-major, in which a row-major array is its transpose: C^T = B^T
// A^T, so its first operand is our B.
cublasLtMatrixLayout_t layout(std::int64_t rows, std::int64_t columns, std::int64_t row,
                              DType dtype) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), row));
  return made;
}
cublasLtMatrixLayout_t layout(const Operand& x, std::int64_t rows, std::int64_t columns,
                              DType dtype) {
  return x.transposed ? layout(columns, rows, x.row, dtype) : layout(rows, columns, x.row, dtype);
}

}  // namespace

struct MatrixLibrary::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const cublasLtMatrixLayout_t x : {a, b, c})
      if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

MatrixLibrary::MatrixLibrary(const DeviceInfo& device) : device_(device) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle));
  handle_ = handle;
}

MatrixLibrary::~MatrixLibrary() {
  plans_.clear();
  cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

const MatrixLibrary::Plan& MatrixLibrary::plan(const Product& p) {
  const bool alignments[] = {aligned(p.a.data, p.a.row, p.dtype),
                             aligned(p.b.data, p.b.row, p.dtype), aligned(p.c, p.c_row, p.c_dtype)};
  std::int64_t flags = 0;
  for (const bool flag : {alignments[0], alignments[1], alignments[2], p.a.transposed,
                          p.b.transposed, p.accumulate, p.bias != nullptr})
    flags = 2 * flags + (flag ? 1 : 0);
  flags =
      (flags * 16 + static_cast<std::int64_t>(p.dtype)) * 16 + static_cast<std::int64_t>(p.c_dtype);
  const Key key{p.m, p.n, p.k, p.a.row, p.b.row, p.c_row, flags, 0};
  if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;

  auto made = std::make_unique<Plan>();
  check(cublasLtMatmulDescCreate(&made->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(made->desc, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made->desc, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias != nullptr) {
    set(made->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(made->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.dtype));
    set(made->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  made->a = layout(p.a, p.m, p.k, p.dtype);
  made->b = layout(p.b, p.k, p.n, p.dtype);
  made->c = layout(p.m, p.n, p.c_row, p.c_dtype);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(matrix_library_bytes(device_)));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      least_alignment(p.b.data, p.b.row, p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      least_alignment(p.a.data, p.a.row, p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      least_alignment(p.c, p.c_row, p.c_dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      least_alignment(p.c, p.c_row, p.c_dtype));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle_), made->desc, made->b,
                                     made->a, made->c, made->c, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0)
    throw Error(str("matrix product [", p.m, ", ", p.k, "] x [", p.k, ", ", p.n, "] of ",
                    name_of(p.dtype), ": cuBLASLt has no algorithm (",
                    cublasLtGetStatusString(status), "); use sizes that are multiples of 8"));
  made->algorithm = result.algo;
  return *plans_.emplace(key, std::move(made)).first->second;
}

void MatrixLibrary::multiply(const Product& p, std::span<std::byte> workspace,
                             CUstream_st* stream) {
  expect(static_cast<std::int64_t>(workspace.size()) >= matrix_library_workspace(device_),
         "a matrix product with less workspace than was planned");
  const Plan& plan = this->plan(p);
  if (p.bias != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  const std::uintptr_t skip =
      (kMatrixLibraryAlign - address % kMatrixLibraryAlign) % kMatrixLibraryAlign;
  const float one = 1, beta = p.accumulate ? 1 : 0;
  check(cublasLtMatmul(static_cast<cublasLtHandle_t>(handle_), plan.desc, &one, p.b.data, plan.b,
                       p.a.data, plan.a, &beta, p.c, plan.c, p.c, plan.c, &plan.algorithm,
                       workspace.data() + skip,
                       static_cast<std::size_t>(matrix_library_bytes(device_)), stream));
}

}  // namespace tilefold::nn
