#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tilefold {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool ready(int descriptor, short event, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted{descriptor, event, 0};
    const int found = poll(&wanted, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
  }
}

Socket open_socket() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;  // beats are small and must not wait for each other
  if (socket)
    setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

sockaddr_in address_of(std::uint32_t address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = address;
  out.sin_port = port;
  return out;
}

// This host's addresses, the loopback left out.
void list_interfaces(Listening& where) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  std::size_t count = 0;
  for (const ifaddrs* i = all; i != nullptr && count < where.addresses.size(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    where.addresses[count++] = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr;
  }
  freeifaddrs(all);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket listen_for_ranks(bool this_host_only, Listening& where) {
  where = {};
  Socket socket = open_socket();
  if (!socket) return {};
  sockaddr_in own = address_of(htonl(this_host_only ? INADDR_LOOPBACK : INADDR_ANY), 0);
  socklen_t size = sizeof own;
  if (bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), size) != 0 ||
      listen(socket.descriptor(), SOMAXCONN) != 0 ||
      getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return {};
  if (this_host_only)
    where.addresses[0] = htonl(INADDR_LOOPBACK);
  else
    list_interfaces(where);
  where.port = own.sin_port;
  return socket;
}

Socket connect_to(const Listening& where, milliseconds each) {
  if (where.port == 0) return {};
  for (const std::uint32_t address : where.addresses) {
    if (address == 0) break;
    Socket socket = open_socket();
    if (!socket) return {};
    sockaddr_in to = address_of(address, where.port);
    if (connect(socket.descriptor(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0)
      return socket;
    if (errno != EINPROGRESS || !ready(socket.descriptor(), POLLOUT, steady_clock::now() + each))
      continue;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return socket;
  }
  return {};
}

Socket accept_from(const Socket& listener, Deadline deadline) {
  while (ready(listener.descriptor(), POLLIN, deadline)) {
    Socket socket(
        accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) return socket;
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return {};
  }
  return {};
}

bool send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    else if (errno != EINTR &&
             (errno != EAGAIN || !ready(socket.descriptor(), POLLOUT, deadline)))
      return false;
  }
  return true;
}

bool receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (got > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EINTR &&
                          (errno != EAGAIN || !ready(socket.descriptor(), POLLIN, deadline))))
      return false;
  }
  return true;
}

}  // namespace tilefold
