// What an op must at least do: for benchmarks and plans, printed beside what was measured.
#pragma once

namespace tilefold {

struct Cost {
  double flops = 0;  // multiply and add counted as two
  double bytes = 0;  // moved to and from memory: each input read once, each output written once,
                     // and what the algorithm reads again by design (said in the op's header)
};

}  // namespace tilefold
