#include "io/hdf5_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>

#include "base/error.h"

namespace tilefold {
namespace {

// The child goes with its parent, and by itself after its time, whatever libhdf5 does.
void set_up_child(int cpu_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGXCPU, SIGINT, SIGTERM})
    signal(number, SIG_DFL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const auto limit = static_cast<rlim_t>(cpu_seconds);
  const rlimit time{limit, limit + 1};
  setrlimit(RLIMIT_CPU, &time);
}

// The child's message up to its end, or until the time is over.
std::string read_message(int pipe, double seconds, bool& in_time) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::string message;
  for (;;) {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    pollfd wait{pipe, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::clamp(left, 0.0, 1e6) * 1000));
    if (ready < 0 && errno == EINTR) continue;
    in_time = ready > 0;
    if (!in_time) return message;
    char buffer[512];
    const ssize_t n = ::read(pipe, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return message;
    message.append(buffer, static_cast<std::size_t>(n));
  }
}

}  // namespace

void run_in_child(const std::string& path, int cpu_seconds, FunctionRef<void()> look) {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "cannot read ", path, ": pipe: ", std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    set_up_child(cpu_seconds);
    int status = 0;
    std::string message;
    try {
      look();
    } catch (const std::exception& error) {
      message = error.what();
      status = 1;
    }
    if (!message.empty() && ::write(ends[1], message.data(), message.size()) < 0) status = 2;
    _exit(status);  // nothing of the parent's is flushed or destroyed
  }
  close(ends[1]);
  bool in_time = true;
  std::string message;
  if (child > 0) message = read_message(ends[0], 100.0 * cpu_seconds, in_time);
  close(ends[0]);
  require(child > 0, "cannot read ", path, ": fork: ", std::strerror(errno));
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const bool out_of_time = !in_time || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU);
  require(!out_of_time, "cannot read ", path,
          ": damaged HDF5 file (libhdf5 did not finish with it in a child process)");
  require(WIFEXITED(status), "cannot read ", path,
          ": damaged HDF5 file (libhdf5 crashed on it in a child process)");
  require(WEXITSTATUS(status) == 0, message);
}

}  // namespace tilefold
