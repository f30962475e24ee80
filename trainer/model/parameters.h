// The list of a model's parameters.
#pragma once

#include <vector>

#include "trainer/model/parts.h"

namespace tilefold {

// In declaration order; fills in where each part finds its own.
std::vector<Parameter> make_parameters(const Sizes& sizes, Weights& weights);

}  // namespace tilefold
