// Whole text files.
#pragma once

#include <string>

namespace tilefold {

// The bytes of the file. Missing, unreadable, not a regular file, or empty: Error with path and
// reason.
std::string read_text_file(const std::string& path);

}  // namespace tilefold
