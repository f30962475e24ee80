// Ranks over MPI, between the memories of hosts.
//
// A sum of n elements over P ranks is cut into pieces of at most kPieceBytes, and each piece into P
// chunks, one owned by each rank. Two exchanges, point to point, of P-1 messages each way:
//
//   scatter   rank r receives chunk r of every other rank        sent: (P-1)/P of the piece
//   add       in rank order, in double, rounded once             bits fixed by the ranks alone
//   gather    rank r sends its finished chunk r to every other   sent: (P-1)/P of the piece
//
// (start_scatter() and start_gather() are the halves, on pieces whose chunks lie n / P apart.) So a rank
// sends 2 n (P-1)/P elements, as a ring does. Up to kSlots pieces are under way at a
// time.
#include "comm/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/heartbeat.h"
#include "comm/timeout.h"

namespace tilefold {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPieceBytes = 2 << 20;    // of 0.5 to 4 MiB the fastest between 2 ranks
constexpr int kSlots = 4;                        // one adds while others are on their way
constexpr std::int64_t kGatherValues = 512;      // doubles a rank gives to one round of a small sum
constexpr std::chrono::seconds kGrace(5);        // until a rank that fails ends the others
constexpr std::int64_t kMessageBytes = 1 << 30;  // MPI counts are int

int narrow(std::int64_t count) { return static_cast<int>(count); }

// The chunk of `rank` when n elements are cut for `ranks`: the first n % ranks are one longer.
struct Chunk {
  std::int64_t begin, count;
};
Chunk chunk_of(std::int64_t n, int ranks, int rank) {
  const std::int64_t each = n / ranks, longer = n % ranks;
  return {rank * each + std::min<std::int64_t>(rank, longer), each + (rank < longer ? 1 : 0)};
}

// own[i] = sum over ranks r, in order, of their element i; others holds the rest, [ranks - 1,
// count].
template <class T>
void add_in_rank_order(T* own, const T* others, std::int64_t count, int rank, int ranks) {
  constexpr std::int64_t kBlock = 1024;  // 8 KiB of sums stay in the first-level cache
  std::array<double, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    for (int r = 0; r < ranks; ++r) {
      const T* from = r == rank ? own : others + (r < rank ? r : r - 1) * count;
      for (std::int64_t i = 0; i < length; ++i) {
        const double value = static_cast<double>(from[begin + i]);
        sum[static_cast<std::size_t>(i)] =
            r == 0 ? value : sum[static_cast<std::size_t>(i)] + value;
      }
    }
    for (std::int64_t i = 0; i < length; ++i)
      own[begin + i] = static_cast<T>(sum[static_cast<std::size_t>(i)]);
  }
}

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(bool finalize) : timeout_(comm_timeout()), finalize_(finalize) {
    MPI_Comm_dup(MPI_COMM_WORLD, &world_);
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);  // reported by check(), with the rank
    MPI_Comm_dup(world_, &leaving_);                     // inherits that
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
    MPI_Comm host;
    MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_size(host, &local_size_);
    MPI_Comm_free(&host);
    gathered_.resize(static_cast<std::size_t>(size_ * kGatherValues));
    const std::int64_t largest_chunk = (kPieceBytes + size_ - 1) / size_ + 8;
    for (Slot& slot : slots_) {
      slot.others.resize(static_cast<std::size_t>((size_ - 1) * largest_chunk));
      slot.requests.resize(static_cast<std::size_t>(2 * (size_ - 1)), MPI_REQUEST_NULL);
    }
    heartbeat_.emplace(*this);
  }

  ~MpiCommunicator() override {
    // MPI_Finalize waits for all ranks without a deadline, so they meet before it, in a place of
    // its own: a rank that an exception drives out must not meet another one's barrier.
    const bool failed = std::uncaught_exceptions() > exceptions_at_birth_;
    MPI_Request request;
    check(MPI_Ibarrier(leaving_, &request), "MPI_Ibarrier");
    if (failed)
      complete({&request, 1}, kGrace, "stopped by an exception, while others go on");
    else
      complete({&request, 1}, "the end of the run");
    heartbeat_.reset();
    MPI_Comm_free(&leaving_);
    MPI_Comm_free(&world_);
    if (finalize_) MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::int64_t buffer_bytes() const override {
    std::int64_t bytes = static_cast<std::int64_t>(gathered_.size() * sizeof(double));
    for (const Slot& slot : slots_) bytes += static_cast<std::int64_t>(slot.others.size());
    return bytes;
  }

  void all_reduce_sum(std::span<double> values) override {
    reduce(values, [](double a, double b) { return a + b; });
  }

  void all_reduce_max(std::span<double> values) override {
    reduce(values, [](double a, double b) { return std::isnan(a) || a >= b ? a : b; });
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    expect(root >= 0 && root < size_, "root is no rank");
    const auto total = static_cast<std::int64_t>(bytes.size());
    for (std::int64_t at = 0; at < total; at += kMessageBytes) {
      MPI_Request request;
      check(MPI_Ibcast(bytes.data() + at, narrow(std::min(kMessageBytes, total - at)), MPI_BYTE,
                       root, world_, &request),
            "MPI_Ibcast");
      complete({&request, 1}, "a broadcast");
    }
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    expect(all.size() == mine.size() * static_cast<std::size_t>(size_), "all_gather sizes differ");
    if (mine.empty()) return;
    std::memmove(all.data() + mine.size() * static_cast<std::size_t>(rank_), mine.data(),
                 mine.size());
    for (int root = 0; root < size_; ++root)
      broadcast(all.subspan(mine.size() * static_cast<std::size_t>(root), mine.size()), root);
  }

  void barrier() override {
    MPI_Request request;
    check(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
    complete({&request, 1}, "a barrier");
  }

  void start_sum(Tensor values) override {
    expect(values.dense() && (values.dtype == DType::f32 || values.dtype == DType::f64),
           "start_sum needs dense f32 or f64");
    const std::int64_t element = size_of(values.dtype);
    for (std::int64_t at = 0; at < values.bytes(); at += kPieceBytes)
      queue_.push_back({.data = static_cast<std::byte*>(values.data) + at,
                        .count = std::min(kPieceBytes, values.bytes() - at) / element,
                        .dtype = values.dtype});
    progress();
  }

  void start_scatter(std::span<const Tensor> values) override {
    for (const Tensor& t : values) {
      expect(t.dtype == DType::f32 || t.dtype == DType::f64, "start_scatter needs f32 or f64");
      queue_parts(t, Pass::scatter);
    }
    progress();
  }

  void start_gather(std::span<const Tensor> values) override {
    // As bytes: nothing is added.
    for (const Tensor& t : values) queue_parts(Tensor(t.data, DType::u8, {t.bytes()}), Pass::gather);
    progress();
  }

  void wait() override {
    // Every rank waits for its oldest piece, and pieces start in the same order everywhere: the
    // oldest piece of all has been started by every rank that waits, so it gets done.
    for (Slot* slot = oldest(); slot != nullptr; slot = oldest()) {
      complete(slot->requests, "a sum of gradients");
      progress();
    }
    queue_.clear();
    next_ = 0;
  }

  [[noreturn]] void abort(int status, const std::string& why) override {
    std::fprintf(stderr, "tilefold: rank %d of %d: %s; ending all ranks\n", rank_, size_,
                 why.c_str());
    std::fflush(nullptr);
    if (heartbeat_) heartbeat_->leave(true);
    MPI_Abort(world_, status);
    std::_Exit(status);
  }

 private:
  enum class Pass { sum, scatter, gather };
  struct Piece {
    std::byte* data = nullptr;
    std::int64_t count = 0;  // elements: of all chunks; with a stride, of each
    DType dtype = DType::f32;
    Pass pass = Pass::sum;
    std::int64_t stride = 0;  // elements from one rank's chunk to the next one's; 0: they touch
    Chunk chunk(int ranks, int rank) const {
      return stride == 0 ? chunk_of(count, ranks, rank) : Chunk{rank * stride, count};
    }
  };
  enum class State { idle, scatter, gather };
  struct Slot {
    State state = State::idle;
    std::size_t number = 0;  // of the piece, in the queue
    Piece piece{};
    std::vector<std::byte> others;      // [size - 1, own chunk]
    std::vector<MPI_Request> requests;  // [2 (size - 1)]
  };

  void queue_parts(const Tensor& values, Pass pass) {
    expect(values.dense() && values.numel() % size_ == 0, "parts need a size that ranks divide");
    const std::int64_t part = values.numel() / size_, element = size_of(values.dtype);
    const std::int64_t most = std::max<std::int64_t>(kPieceBytes / element / size_, 1);
    for (std::int64_t at = 0; at < part; at += most)
      queue_.push_back({.data = static_cast<std::byte*>(values.data) + at * element,
                        .count = std::min(most, part - at),
                        .dtype = values.dtype,
                        .pass = pass,
                        .stride = part});
  }

  void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    abort(EXIT_FAILURE, str(call, " failed: ", text));
  }

  void complete(std::span<MPI_Request> requests, const char* what) {
    complete(requests, timeout_, what);
  }

  // Waits with a deadline; after a short while without spinning, for the sake of whoever computes.
  void complete(std::span<MPI_Request> requests, std::chrono::seconds limit, const char* what) {
    const Clock::time_point start = Clock::now();
    for (std::int64_t polls = 0;; ++polls) {
      int done = 0;
      check(MPI_Testall(narrow(static_cast<std::int64_t>(requests.size())), requests.data(), &done,
                        MPI_STATUSES_IGNORE),
            "MPI_Testall");
      if (done) return;
      if (polls < 100) continue;
      const auto waited = Clock::now() - start;
      if (waited > limit)
        abort(EXIT_FAILURE, str("no answer from other ranks for ", limit.count(), " s: ", what));
      if (waited < std::chrono::milliseconds(1))
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  template <class Combine>
  void reduce(std::span<double> values, Combine combine) {
    const auto total = static_cast<std::int64_t>(values.size());
    for (std::int64_t at = 0; at < total; at += kGatherValues) {
      const std::int64_t count = std::min(kGatherValues, total - at);
      MPI_Request request;
      check(MPI_Iallgather(values.data() + at, narrow(count), MPI_DOUBLE, gathered_.data(),
                           narrow(count), MPI_DOUBLE, world_, &request),
            "MPI_Iallgather");
      complete({&request, 1}, "a reduction");
      for (std::int64_t i = 0; i < count; ++i) {
        double result = gathered_[static_cast<std::size_t>(i)];
        for (int r = 1; r < size_; ++r)
          result = combine(result, gathered_[static_cast<std::size_t>(r * count + i)]);
        values[static_cast<std::size_t>(at + i)] = result;
      }
    }
  }

  Slot* oldest() {
    Slot* found = nullptr;
    for (Slot& slot : slots_)
      if (slot.state != State::idle && (found == nullptr || slot.number < found->number))
        found = &slot;
    return found;
  }

  // Moves every piece on as far as it goes without waiting, and starts queued ones in free slots.
  void progress() {
    for (Slot& slot : slots_) {
      if (slot.state != State::idle) {
        int done = 0;
        check(MPI_Testall(narrow(static_cast<std::int64_t>(slot.requests.size())),
                          slot.requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
        if (!done) continue;
        const bool adds = slot.state == State::scatter;
        if (adds) add(slot);
        if (adds && slot.piece.pass == Pass::sum)
          exchange(slot, State::gather);
        else
          slot.state = State::idle;
      }
      if (slot.state == State::idle && next_ < queue_.size()) {
        slot.number = next_;
        slot.piece = queue_[next_++];
        exchange(slot, slot.piece.pass == Pass::gather ? State::gather : State::scatter);
      }
    }
  }

  // Sends and receives of one exchange. Scatter: their chunk to them, mine from them, beside mine.
  // Gather: mine to them, theirs from them, in place.
  void exchange(Slot& slot, State state) {
    slot.state = state;
    const Piece& piece = slot.piece;
    const MPI_Datatype type = piece.dtype == DType::f32   ? MPI_FLOAT
                              : piece.dtype == DType::f64 ? MPI_DOUBLE
                                                          : MPI_BYTE;
    const std::int64_t element = size_of(piece.dtype);
    const Chunk mine = piece.chunk(size_, rank_);
    // Messages between two ranks keep their order within a tag, so few tags serve.
    const int tag = narrow(static_cast<std::int64_t>(slot.number % 4096)) * 2 +
                    (state == State::gather ? 1 : 0);
    std::size_t request = 0;
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;  // not all ranks at the same peer at once
      const Chunk theirs = piece.chunk(size_, peer);
      std::byte* beside =
          slot.others.data() + (peer < rank_ ? peer : peer - 1) * mine.count * element;
      const bool scatter = state == State::scatter;
      const Chunk in = scatter ? mine : theirs, out = scatter ? theirs : mine;
      check(MPI_Irecv(scatter ? beside : piece.data + in.begin * element, narrow(in.count), type,
                      peer, tag, world_, &slot.requests[request++]),
            "MPI_Irecv");
      check(MPI_Isend(piece.data + out.begin * element, narrow(out.count), type, peer, tag, world_,
                      &slot.requests[request++]),
            "MPI_Isend");
    }
  }

  void add(Slot& slot) {
    const Piece& piece = slot.piece;
    const Chunk mine = piece.chunk(size_, rank_);
    std::byte* own = piece.data + mine.begin * size_of(piece.dtype);
    const std::byte* others = slot.others.data();
    if (piece.dtype == DType::f32)
      add_in_rank_order(reinterpret_cast<float*>(own), reinterpret_cast<const float*>(others),
                        mine.count, rank_, size_);
    else
      add_in_rank_order(reinterpret_cast<double*>(own), reinterpret_cast<const double*>(others),
                        mine.count, rank_, size_);
  }

  std::chrono::seconds timeout_;
  bool finalize_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
  MPI_Comm world_ = MPI_COMM_NULL, leaving_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<double> gathered_;  // [size, kGatherValues]
  std::array<Slot, kSlots> slots_;
  std::vector<Piece> queue_;  // since the last wait(); keeps its capacity
  std::size_t next_ = 0;      // first of the queue that was not started
  std::optional<Heartbeat> heartbeat_;
};

}  // namespace

std::string mpi_absence() { return {}; }

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

std::unique_ptr<Communicator> open_mpi(int* argc, char*** argv, int launched) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    int provided = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    require(provided >= MPI_THREAD_FUNNELED, mpi_version(),
            " does not allow threads beside the one that calls it (MPI_THREAD_FUNNELED)");
  }
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != launched) {
    if (!initialized && size == 1) MPI_Finalize();
    throw Error(str("the launcher started ", launched, " ranks, but ", mpi_version(), " sees ",
                    size, ": the launcher belongs to another MPI than this build; use its own ",
                    "mpirun, or build with the launcher's MPI"));
  }
  return std::make_unique<MpiCommunicator>(!initialized);
}

}  // namespace tilefold
