#include "base/dtype.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace tilefold {
namespace {

struct Row {
  DType dtype;
  std::int64_t size;
  std::string_view name;
};

constexpr std::array<Row, 8> kRows{{{DType::f32, 4, "f32"},
                                    {DType::bf16, 2, "bf16"},
                                    {DType::f16, 2, "f16"},
                                    {DType::f64, 8, "f64"},
                                    {DType::i32, 4, "i32"},
                                    {DType::i64, 8, "i64"},
                                    {DType::u16, 2, "u16"},
                                    {DType::u8, 1, "u8"}}};

}  // namespace

std::int64_t size_of(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

DType parse_dtype(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  throw UsageError(str("dtype '", name, "' is unknown; allowed: f32, bf16, f16, f64"));
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f64:
      return 0x1p-53;
    default:
      expect(false, "an integer dtype has no roundoff");
      return 0;
  }
}

}  // namespace tilefold
