#include "trainer/ranks.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace tilefold {
namespace {

// The exit status and the line that belong to the exception being handled.
int status_of_current(std::string* line) {
  try {
    throw;
  } catch (const ExitStatus& exit) {
    return exit.status;
  } catch (const UsageError& error) {
    *line = error.what();
    return 2;
  } catch (const std::exception& error) {
    *line = error.what();
    return 1;
  }
}

}  // namespace

void together(Communicator& comm, const std::function<void()>& setup) {
  if (comm.size() == 1) return setup();
  std::string line;
  int status = 0;
  try {
    setup();
  } catch (...) {
    status = status_of_current(&line);
  }
  const double mine = status;
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const auto failed = std::find_if(all.begin(), all.end(), [](double s) { return s != 0; });
  if (failed == all.end()) return;
  if (failed - all.begin() == comm.rank() && !line.empty())
    std::fprintf(stderr, "tilefold: rank %d: %s\n", comm.rank(), line.c_str());
  comm.barrier();  // the line is out before any rank leaves
  throw ExitStatus{static_cast<int>(*failed)};
}

void or_abort(Communicator& comm, const std::function<void()>& body) {
  if (comm.size() == 1) return body();
  std::string line;
  int status = 0;
  try {
    body();
    return;
  } catch (const ExitStatus&) {
    throw;  // by together(), which has said why: every rank is on its way out
  } catch (...) {
    status = status_of_current(&line);
  }
  comm.abort(status, line);
}

int threads_of(const RunConfig& run, int local_ranks) {
  if (run.threads > 0) return static_cast<int>(run.threads);
  return std::max(1, allowed_cores() / local_ranks);
}

}  // namespace tilefold
