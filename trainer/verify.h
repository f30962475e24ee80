// Does this machine and build compute the same attention as the one that saved a checkpoint?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/checkpoint.h"

namespace tilefold {

struct LayerAgreement {
  std::int64_t rows = 0;       // of m and l
  std::int64_t equal = 0;      // rows whose m and l have the saved bits
  double largest_error = 0;    // of lse = m + ln l, absolute
  double largest_allowed = 0;  // at that row
  bool agrees = true;          // every row within what rounding allows
};

// Replays the saved batch with the saved weights and compares each layer's row constants.
//   allowed, a row of layer i:  (i + 1) * 64 eps (1 + |lse|), eps of the model's dtype: rounding of
//   the layers below reaches the scores, so the bound grows with depth
// Throws Error if the checkpoint holds no row constants.
std::vector<LayerAgreement> verify_checkpoint(const CheckpointReader& file,
                                              const std::string& device, int threads);

}  // namespace tilefold
