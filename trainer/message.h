// Lines for whoever watches, on stderr.
#pragma once

#include <cstdio>
#include <string>

namespace tilefold {

// A full or closed stderr is no reason to stop a run, so failures are not looked at.
inline void message(const std::string& text) { std::fputs(text.c_str(), stderr); }

}  // namespace tilefold
