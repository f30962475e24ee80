// A machine's GPU that device "auto" did not take, which nobody should find out by the speed alone.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "device/device.h"
#include "device/gpus.h"
#include "trainer/message.h"

namespace tilefold {

// A line that says why, if `asked` is "auto" and the CPU was opened on a machine with an NVIDIA
// driver (a build without CUDA, a driver older than the toolkit); else nothing.
inline void mention_unused_gpu(std::string_view asked, const DeviceInfo& opened) {
  if (asked == "auto" && opened.kind == DeviceKind::cpu && has_nvidia_driver())
    message(str("warning: device auto is the CPU here: ", cuda_absence(), "\n"));
}

}  // namespace tilefold
