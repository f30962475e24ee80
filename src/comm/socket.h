// TCP between the ranks of a job, as the heartbeat needs it: IPv4, small messages, deadlines. The
// descriptors are closed when their owner goes. Errors are return values: a heartbeat that cannot be had
// must not end a run.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

namespace tilefold {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Where a rank listens: plain bytes, so that it can be broadcast.
struct Listening {
  std::array<std::uint32_t, 8> addresses{};  // IPv4 in network order; 0: no more
  std::uint16_t port = 0;                    // in network order; 0: nobody listens
};

using Deadline = std::chrono::steady_clock::time_point;

// Listens on a free port: on the loopback alone, or on every interface. Empty if that fails.
Socket listen_for_ranks(bool this_host_only, Listening& where);
// Tries the addresses in turn; empty if none answers.
Socket connect_to(const Listening& where, std::chrono::milliseconds each);
// The next connection; empty at the deadline.
Socket accept_from(const Socket& listener, Deadline deadline);
// All the bytes, or false.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
bool receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);

}  // namespace tilefold
