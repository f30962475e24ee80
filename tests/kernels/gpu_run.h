// Attention problems of the shared harness, run on a GPU through the op's door: arrays are copied
// there with the NaN around them, and what lies around outputs is checked when they come back.
#pragma once

#include <memory>

#include "tests/cpu/attention/harness.h"

namespace tilefold::test {

// The first GPU, or nothing after printing "SKIPPED:" and why.
struct Gpu {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Context context() { return {*device, *stream}; }
  explicit operator bool() const { return device != nullptr; }
};
Gpu gpu_or_skip();

// Problem::layout of all arrays.
Outputs run_on_gpu(Context ctx, const Problem& problem, const Inputs& inputs,
                   Passes passes = Passes::both);

}  // namespace tilefold::test
