#include "trainer/report/memory_report.h"

namespace tilefold {

std::int64_t longest_context(FunctionRef<std::int64_t(std::int64_t)> bytes, std::int64_t memory,
                             std::int64_t most) {
  if (most < 1 || bytes(1) > memory) return 0;
  std::int64_t fits = 1, over = most + 1;
  // Doubling first: a plan for `most` may be too large for 64 bits.
  while (fits <= most / 2 && over > 2 * fits) {
    if (bytes(2 * fits) <= memory)
      fits *= 2;
    else
      over = 2 * fits;
  }
  while (over - fits > 1) {
    const std::int64_t middle = fits + (over - fits) / 2;
    (bytes(middle) <= memory ? fits : over) = middle;
  }
  return fits;
}

}  // namespace tilefold
