// Opening a communicator, and the one of a single rank.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/mpi.h"
#include "comm/nccl.h"

namespace tilefold {
namespace {

class OneRank : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::int64_t buffer_bytes() const override { return 0; }

  void all_reduce_sum(std::span<double>) override {}
  void all_reduce_max(std::span<double>) override {}
  void broadcast(std::span<std::byte>, int root) override { expect(root == 0, "root is no rank"); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    expect(all.size() == mine.size(), "all_gather sizes differ");
    if (!mine.empty()) std::memmove(all.data(), mine.data(), mine.size());
  }
  void barrier() override {}
  void start_sum(Tensor) override {}
  void wait() override {}
  void start_scatter(std::span<const Tensor>) override {}
  void start_gather(std::span<const Tensor>) override {}

  [[noreturn]] void abort(int status, const std::string& why) override {
    std::fprintf(stderr, "tilefold: %s\n", why.c_str());
    std::fflush(nullptr);
    std::_Exit(status);
  }
};

}  // namespace

std::unique_ptr<Communicator> open_communicator(int* argc, char*** argv) {
  const Launch launch = detect_launch();
  if (launch.size == 1) return std::make_unique<OneRank>();
  return open_mpi(argc, argv, launch.size);
}

std::unique_ptr<Communicator> open_device_communicator(Communicator& host, Device& device,
                                                       Stream& compute) {
  if (host.size() == 1 || device.info().kind == DeviceKind::cpu) return nullptr;
  return open_nccl(host, device, compute);
}

}  // namespace tilefold
