// Files of a test as bytes, and what a test expects of errors and processes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "tests/temporary_directory.h"

namespace tilefold {

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// The message of the Error that `run` throws; empty if it throws none.
template <class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Runs `work` in a child process: 0, 3 for an Error, 4 for another exception, or -signal.
template <class F>
int in_child(F&& work) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      work();
    } catch (const Error&) {
      _exit(3);
    } catch (...) {
      _exit(4);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace tilefold
