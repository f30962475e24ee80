#include "contract/optimizer.h"

namespace tilefold {

std::int64_t grad_square_sum_workspace(std::int64_t elements, std::int64_t tensors,
                                       const DeviceInfo&) {
  // A tensor's last block may be short, so each tensor can add one.
  return (elements / kGradSquareBlock + tensors) * size_of(DType::f64);
}

}  // namespace tilefold
