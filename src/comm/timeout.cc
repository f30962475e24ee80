#include "comm/timeout.h"

#include <cstdlib>

#include "base/error.h"

namespace tilefold {

std::chrono::seconds comm_timeout() {
  const char* text = std::getenv("TILEFOLD_COMM_TIMEOUT");
  if (text == nullptr) return std::chrono::seconds(1800);
  char* end = nullptr;
  const long seconds = std::strtol(text, &end, 10);
  require(*text != '\0' && *end == '\0' && seconds > 0, "TILEFOLD_COMM_TIMEOUT is '", text,
          "', not a number of seconds above 0");
  return std::chrono::seconds(seconds);
}

}  // namespace tilefold
