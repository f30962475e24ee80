// Connecting happens on the main thread, between collective calls; from then on the connections
// belong to the thread. Messages are 8 bytes each way:
//
//   kBeat     every second
//   kLeave    this rank needs no watching any more
//   kAbort    the same, and whoever hears it ends too if the launcher does not end it within kGrace
#include "comm/heartbeat.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/quiet_thread.h"
#include "comm/socket.h"

namespace tilefold {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kBeat(1000);
constexpr milliseconds kPoll(200);          // how fast leave() is noticed
constexpr milliseconds kHeldUp(2500);       // a round that took longer heard too little to judge
constexpr milliseconds kDying(300);         // the launcher may be ending all ranks at this moment
constexpr seconds kGrace(5);                // for the launcher, after an abort
constexpr milliseconds kConnectEach(2000);  // an address
constexpr seconds kConnectAll(20);          // rank 0 waits for everybody

enum class Kind : std::uint32_t { beat = 1, leave = 2, abort = 3 };
struct Message {
  Kind kind;
  std::uint32_t rank;  // sender
};
struct Hello {
  std::uint64_t token;  // of this job: a stranger's connection is dropped
  std::uint64_t rank;
};
struct Invitation {  // from rank 0
  std::int64_t limit_seconds = 0;
  std::uint64_t token = 0;
  Listening where;
};
struct Introduction {  // from every rank
  char host[64] = {};
  std::int64_t connected = 0;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::uint64_t draw_token() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

seconds heartbeat_limit() {
  const char* text = std::getenv("TILEFOLD_HEARTBEAT");
  if (text == nullptr) return seconds(15);
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  require(*text != '\0' && *end == '\0' && (value == 0 || value >= 3), "TILEFOLD_HEARTBEAT is '",
          text, "', not a number of seconds from 3 on, nor 0 to switch it off");
  return seconds(value);
}

// The thread and what belongs to it.
class Heartbeat::Watch {
 public:
  struct Peer {
    int rank = 0;
    Socket socket;
    std::array<char, 64> host{};
    Clock::time_point heard{};
    std::array<std::byte, sizeof(Message)> partial{};
    std::size_t filled = 0;
  };

  Watch(int rank, int size, seconds limit, std::vector<Peer> peers)
      : rank_(rank), size_(size), limit_(limit), peers_(std::move(peers)) {
    for (Peer& peer : peers_) peer.heard = Clock::now();
    wanted_.resize(peers_.size());
    thread_ = quiet_thread([this] { run(); });
  }
  ~Watch() { leave(Kind::leave); }

  void leave(Kind how) noexcept {
    if (!thread_.joinable()) return;
    leaving_ = how;
    thread_.join();
  }

 private:
  void run() {
    Clock::time_point beat = Clock::now(), round = beat;
    while (leaving_ == Kind::beat) {
      const Clock::time_point now = Clock::now();
      if (now - round > kHeldUp)
        for (Peer& peer : peers_) peer.heard = now;
      round = now;
      if (now >= beat) {
        tell(Kind::beat);
        beat = now + kBeat;
      }
      listen();
      for (const Peer& peer : peers_)
        if (peer.socket && Clock::now() - peer.heard > limit_ && round + kHeldUp > Clock::now())
          silent(peer);
      if (aborted_ && Clock::now() > abort_at_) std::_Exit(EXIT_FAILURE);
    }
    tell(leaving_);
  }

  // A full buffer belongs to a rank that does not listen; it is judged by its own beats.
  void tell(Kind kind) {
    const Message message{kind, static_cast<std::uint32_t>(rank_)};
    for (const Peer& peer : peers_)
      if (peer.socket)
        send(peer.socket.descriptor(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void listen() {
    for (std::size_t i = 0; i < peers_.size(); ++i)  // poll passes by negative descriptors
      wanted_[i] = {peers_[i].socket.descriptor(), POLLIN, 0};
    if (poll(wanted_.data(), wanted_.size(), static_cast<int>(kPoll.count())) <= 0) return;
    for (std::size_t i = 0; i < peers_.size(); ++i)
      if (wanted_[i].revents != 0) receive(peers_[i]);
  }

  void receive(Peer& peer) {
    while (peer.socket) {
      const ssize_t got = recv(peer.socket.descriptor(), peer.partial.data() + peer.filled,
                               peer.partial.size() - peer.filled, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) return dead(peer);
      peer.heard = Clock::now();
      peer.filled += static_cast<std::size_t>(got);
      if (peer.filled < peer.partial.size()) continue;
      peer.filled = 0;
      Message message;
      std::memcpy(&message, peer.partial.data(), sizeof message);
      if (message.kind == Kind::beat) continue;
      peer.socket = Socket();
      if (message.kind == Kind::abort) {
        if (rank_ == 0) tell(Kind::abort);  // those that hear rank 0 alone
        aborted_ = true;
        abort_at_ = Clock::now() + kGrace;
      }
    }
  }

  // Where rank 0 aborts, its connections end as well: nobody is blamed then. It says so at once,
  // for the launcher may end it before the other ranks, which would take it for the one that
  // failed.
  void dead(Peer& peer) {
    peer.socket = Socket();
    if (aborted_) return;
    tell(Kind::abort);
    std::this_thread::sleep_for(kDying);
    if (leaving_ != Kind::beat) return;
    end(peer, "ended without a word (killed, or crashed)");
  }
  void silent(const Peer& peer) {
    if (aborted_) return;
    std::array<char, 128> why;
    std::snprintf(why.data(), why.size(),
                  "is silent for %lld s (stopped, or its host is out of reach; TILEFOLD_HEARTBEAT "
                  "sets the limit)",
                  static_cast<long long>(limit_.count()));
    end(peer, why.data());
  }

  [[noreturn]] void end(const Peer& peer, const char* why) {
    std::fprintf(stderr, "tilefold: rank %d of %d: rank %d on %s %s; ending all ranks\n", rank_,
                 size_, peer.rank, peer.host.data(), why);
    tell(Kind::abort);
    std::_Exit(EXIT_FAILURE);
  }

  const int rank_, size_;
  const seconds limit_;
  std::vector<Peer> peers_;
  std::vector<pollfd> wanted_;  // [peers]
  bool aborted_ = false;
  Clock::time_point abort_at_{};
  std::atomic<Kind> leaving_ = Kind::beat;  // beat: stays
  std::thread thread_;
};

Heartbeat::Heartbeat(Communicator& comm) {
  const bool root = comm.rank() == 0;
  const seconds limit = heartbeat_limit();  // on every rank, so that all refuse a bad one
  Invitation invitation;
  Socket listener;
  if (root) {
    invitation.limit_seconds = limit.count();
    invitation.token = draw_token();
    if (invitation.limit_seconds > 0)
      listener = listen_for_ranks(comm.local_size() == comm.size(), invitation.where);
  }
  comm.broadcast(bytes_of(invitation), 0);
  if (invitation.limit_seconds == 0) return;

  // Everybody else connects and says who it is; rank 0 answers with the token.
  const Deadline deadline = Clock::now() + kConnectAll;
  std::vector<Watch::Peer> peers;
  Introduction mine;
  gethostname(mine.host, sizeof mine.host - 1);
  if (root) {
    mine.connected = 1;
    while (listener && static_cast<int>(peers.size()) + 1 < comm.size()) {
      Socket socket = accept_from(listener, deadline);
      if (!socket) break;
      Hello hello{};
      if (!receive_all(socket, bytes_of(hello), Clock::now() + kConnectEach) ||
          hello.token != invitation.token || !send_all(socket, bytes_of(hello), deadline))
        continue;
      peers.emplace_back();
      peers.back().rank = static_cast<int>(hello.rank);
      peers.back().socket = std::move(socket);
    }
  } else {
    Socket socket = connect_to(invitation.where, kConnectEach);
    Hello hello{invitation.token, static_cast<std::uint64_t>(comm.rank())}, answer{};
    if (socket && send_all(socket, bytes_of(hello), deadline) &&
        receive_all(socket, bytes_of(answer), deadline) && answer.token == hello.token) {
      mine.connected = 1;
      peers.emplace_back();
      peers.back().socket = std::move(socket);
    }
  }

  std::vector<Introduction> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)));
  for (Watch::Peer& peer : peers)
    std::memcpy(peer.host.data(), all[static_cast<std::size_t>(peer.rank)].host, peer.host.size());
  if (root)
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (!all[rank].connected)
        std::fprintf(stderr,
                     "warning: rank %zu on %s does not reach rank 0 on %s over TCP, so the "
                     "heartbeat does not watch it; should it stop, the others wait for "
                     "TILEFOLD_COMM_TIMEOUT\n",
                     rank, all[rank].host, all[0].host);
  if (!peers.empty())
    watch_ = std::make_unique<Watch>(comm.rank(), comm.size(), seconds(invitation.limit_seconds),
                                     std::move(peers));
}

Heartbeat::~Heartbeat() = default;

void Heartbeat::leave(bool aborting) noexcept {
  if (watch_) watch_->leave(aborting ? Kind::abort : Kind::leave);
}

}  // namespace tilefold
