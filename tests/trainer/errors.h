// What a call throws, so that a test can look for the parts of a message.
#pragma once

#include <string>

#include "base/error.h"

namespace tilefold {

// The message of the E that `call` throws; "" if it throws nothing.
template <class E, class Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tilefold
