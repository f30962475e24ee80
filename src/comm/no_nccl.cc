// In place of nccl.cc in a build without NCCL.
#include "base/error.h"
#include "comm/nccl.h"

namespace tilefold {

std::string nccl_absence() {
  return "this build has no NCCL: install it (libnccl-dev) beside a CUDA toolkit and configure again";
}

std::string nccl_version() { return {}; }

std::unique_ptr<Communicator> open_nccl(Communicator& host, Device&, Stream&) {
  throw Error(str(host.size(), " ranks on GPUs need NCCL, but ", nccl_absence(),
                  "; run.device cpu works without"));
}

}  // namespace tilefold
