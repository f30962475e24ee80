// The table of the CUDA kernels, for select.h.
#pragma once

#include "kernels/attention/select.h"

namespace tilefold {

AttentionChoice select_cuda(const AttentionProblem& problem, const DeviceInfo& device);
std::string explain_cuda(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace tilefold
