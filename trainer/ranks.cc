#include "trainer/ranks.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/nccl.h"
#include "device/device.h"
#include "device/gpus.h"

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

std::vector<RankGpu> assign_gpus(Communicator& comm, const std::string& device) {
  if (device == "cpu") return {};
  const std::vector<RankGpu> gpus = map_gpus(comm, cuda_device_count(), gpu_pci_address);
  const bool none = std::all_of(gpus.begin(), gpus.end(), [](const RankGpu& g) { return g.visible == 0; });
  if (none || comm.size() == 1) return none ? std::vector<RankGpu>() : gpus;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    const std::string fault = fault_of(gpus);
    if (!fault.empty()) throw UsageError(fault);
    if (!nccl_absence().empty())
      throw UsageError(str(comm.size(), " ranks on GPUs need NCCL, but ", nccl_absence(),
                           "; run.device cpu works without"));
  });
  return gpus;
}

int gpu_of(const std::vector<RankGpu>& gpus, const Communicator& comm) {
  return gpus.empty() ? 0 : std::max(0, gpus[static_cast<std::size_t>(comm.rank())].ordinal);
}

int threads_of(const RunConfig& run, int local_ranks) {
  if (run.threads > 0) return static_cast<int>(run.threads);
  return std::max(1, allowed_cores() / local_ranks);
}

}  // namespace tilefold
