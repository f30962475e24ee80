#include "trainer/evaluation_text.h"

#include <fmt/format.h>

namespace tilefold {

std::string evaluation_text(const Evaluation& evaluation, bool task) {
  if (evaluation.targets() == 0) return "validation: no tokens to score\n";
  std::string text = fmt::format("validation loss {:.4f} over {:.0f} tokens", evaluation.loss(),
                                 evaluation.targets());
  if (task) text += fmt::format(", accuracy {:.2f}%", 100 * evaluation.accuracy());
  text += "\n  position in the document      tokens      loss";
  text += task ? "  accuracy\n" : "\n";
  for (int b = 0; b < Evaluation::kBuckets; ++b) {
    if (evaluation.targets(b) == 0) continue;
    text += fmt::format("  {:>11} to {:<11} {:>11.0f} {:>9.4f}", Evaluation::first_position(b),
                        Evaluation::last_position(b), evaluation.targets(b), evaluation.loss(b));
    text += task ? fmt::format("  {:>7.2f}%\n", 100 * evaluation.accuracy(b)) : "\n";
  }
  return text;
}

}  // namespace tilefold
