#include <array>
#include <cstddef>
#include <cstring>

#include "comm/communicator.h"
#include "tests/catch.h"

namespace tilefold {
namespace {

TEST_CASE("one rank changes nothing") {
  const auto comm = open_communicator(nullptr, nullptr);
  CHECK(comm->rank() == 0);
  CHECK(comm->size() == 1);
  CHECK(comm->local_rank() == 0);
  CHECK(comm->local_size() == 1);
  CHECK(comm->buffer_bytes() == 0);

  std::array<double, 2> values{1.5, -2.0};
  comm->all_reduce_sum(values);
  comm->all_reduce_max(values);
  comm->start_sum(Tensor(values.data(), DType::f64, {2}));
  comm->wait();
  comm->broadcast(std::as_writable_bytes(std::span(values)), 0);
  comm->barrier();
  CHECK(values == std::array<double, 2>{1.5, -2.0});

  std::array<double, 2> gathered{};
  comm->all_gather(std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(gathered)));
  CHECK(gathered == values);
  CHECK_THROWS(comm->all_gather({}, std::as_writable_bytes(std::span(gathered))));
}

}  // namespace
}  // namespace tilefold
