// The way of a micro-batch to the device.
#include "trainer/host_batch.h"

#include "tests/catch.h"
#include "tests/trainer/model_harness.h"

namespace tilefold {
namespace {

TEST_CASE("a batch of more documents than planned is refused before it is copied") {
  test::Options options;
  options.packed = true;
  test::Harness h(test::tiny_config(ModelStyle::llama), options);
  const std::int64_t planned = h.shape.documents, seq = h.shape.seq;
  HostBatch host(*h.device, 2 * seq, planned + 1);
  CHECK(std::ssize(host.arrays().cu_seqlens) == planned + 2);
  BatchInfo info;
  info.samples = 2;
  const auto upload = [&] {
    return host.upload(h.context(), *h.arena, h.model.train_inputs(), info, seq);
  };
  info.documents = planned;
  CHECK(upload().cu_seqlens.numel() == planned + 1);
  info.documents = planned + 1;
  CHECK_THROWS_WITH(upload(), "batch has 7 documents; planned: 0 to 6");
  info.documents = 0;
  CHECK(!upload().cu_seqlens);
  CHECK(HostBatch(*h.device, 2 * seq, 0).arrays().cu_seqlens.empty());
}

}  // namespace
}  // namespace tilefold
