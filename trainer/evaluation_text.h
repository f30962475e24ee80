// An evaluation as a person reads it.
#pragma once

#include <string>

#include "trainer/data/evaluation.h"

namespace tilefold {

// Loss, accuracy of a task, and a row per bucket of positions: does the far context help?
std::string evaluation_text(const Evaluation& evaluation, bool task);

}  // namespace tilefold
