// Failures and how they travel.
//
// Error       input or environment is wrong; the message says what, where, what is allowed and what
//             to do. The program prints it as one line and exits with status 1.
// UsageError  a command line or config is wrong; exit status 2.
// logic_error a bug of ours (expect); carries its place in the source.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tilefold {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UsageError : public Error {
 public:
  using Error::Error;
};

// "q has ", 3, " heads" -> one string.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error with the parts joined when `ok` is false.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw Error(str(parts...));
}

// For what only a bug of ours can break.
inline void expect(bool ok, const char* what,
                   std::source_location at = std::source_location::current()) {
  if (!ok) throw std::logic_error(str(at.file_name(), ":", at.line(), ": ", what));
}

}  // namespace tilefold
