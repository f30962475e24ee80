// Attention problems of the shared harness, run on a GPU through the op's door: arrays are copied
// there with the NaN around them, and what lies around outputs is checked when they come back.
#pragma once

#include "tests/cpu/attention/harness.h"
#include "tests/kernels/gpu.h"

namespace tilefold::test {

// Problem::layout of all arrays.
Outputs run_on_gpu(Context ctx, const Problem& problem, const Inputs& inputs,
                   Passes passes = Passes::both);

}  // namespace tilefold::test
