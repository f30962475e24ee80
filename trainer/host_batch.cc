#include "trainer/host_batch.h"

#include "base/error.h"

namespace tilefold {

HostBatch::HostBatch(Device& device, std::int64_t tokens, std::int64_t documents) {
  const std::int64_t offsets = documents > 0 ? documents + 1 : 0;
  const auto count = static_cast<std::size_t>(tokens);
  memory_ = device.allocate_host(8 * offsets + 3 * 4 * tokens);
  auto* cu_seqlens = reinterpret_cast<std::int64_t*>(memory_->data());  // first: 8-byte aligned
  auto* ids = reinterpret_cast<std::int32_t*>(memory_->data() + 8 * offsets);
  arrays_.cu_seqlens = {cu_seqlens, static_cast<std::size_t>(offsets)};
  arrays_.tokens = {ids, count};
  arrays_.targets = {ids + count, count};
  arrays_.positions = {ids + 2 * count, count};
}

Tensor upload(Context ctx, const Tensor& whole, const void* from, std::int64_t count) {
  expect(count <= whole.numel(), "an upload of more than was planned");
  const Tensor part(whole.data, whole.dtype, {count});
  ctx.device.copy_to_device(ctx.stream, part.data, from, part.bytes());
  return part;
}

Batch HostBatch::upload(Context ctx, const Arena& arena, const Model::Inputs& inputs,
                        const BatchInfo& info, std::int64_t context) const {
  const std::int64_t tokens = info.samples * context;
  const auto send = [&](TensorId id, const void* from, std::int64_t count) {
    return tilefold::upload(ctx, arena.tensor(id), from, count);
  };
  Batch batch;
  batch.samples = info.samples;
  batch.seq = context;
  batch.tokens = send(inputs.tokens, arrays_.tokens.data(), tokens);
  batch.targets = send(inputs.targets, arrays_.targets.data(), tokens);
  batch.positions = send(inputs.positions, arrays_.positions.data(), tokens);
  if (info.documents > 0) {
    const bool packed = inputs.cu_seqlens != kNoTensor;
    const std::int64_t planned = packed ? arena.tensor(inputs.cu_seqlens).numel() - 1 : 0;
    require(info.documents <= planned, "batch has ", info.documents, " documents; planned: 0 to ",
            planned);
    batch.cu_seqlens = send(inputs.cu_seqlens, arrays_.cu_seqlens.data(), info.documents + 1);
  }
  batch.max_document = info.max_document;
  return batch;
}

}  // namespace tilefold
