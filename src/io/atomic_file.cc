#include "io/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace tilefold {
namespace {

std::string directory_of(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

// The file that is to be replaced: a link's target, not the link. What is no file (a device, a
// pipe) would be gone after the rename.
std::string target_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(!fs::exists(status) || fs::is_regular_file(status), "cannot write ", path,
          ": it is there and no regular file");
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target.string();
}

// NAME.PID.partial: other people's files may end alike.
bool is_temporary(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return false;
  name.remove_suffix(kTemporarySuffix.size());
  const std::size_t dot = name.rfind('.');
  return dot != std::string_view::npos && dot > 0 && dot + 1 < name.size() &&
         name.find_first_not_of("0123456789", dot + 1) == std::string_view::npos;
}

// A write beyond RLIMIT_FSIZE sends SIGXFSZ, which would end the process where an error is due.
class IgnoreSizeLimitSignal {
 public:
  IgnoreSizeLimitSignal() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &ignore, &before_);
  }
  ~IgnoreSizeLimitSignal() { sigaction(SIGXFSZ, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(target_of(path)) {
  temporary_ = str(path_, ".", getpid(), kTemporarySuffix);
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  require(file_ >= 0, "cannot write ", path_, ": ", std::strerror(errno), " (", temporary_, ")");
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const IgnoreSizeLimitSignal guard;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(file_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, "cannot write ", path_, ": ", n < 0 ? std::strerror(errno) : "short write",
            " after ", bytes_ + static_cast<std::int64_t>(done), " bytes, ", bytes.size() - done,
            " more were to follow; the file that was there before is untouched");
    done += static_cast<std::size_t>(n);
  }
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

// After a failed fsync the kernel may have dropped the pages, so a second try could claim success
// falsely: the file is given up instead.
void AtomicFile::sync() {
  require(fsync(file_) == 0, "cannot write ", path_, ": fsync: ", std::strerror(errno));
}

void AtomicFile::commit() {
  sync();
  const int closed = close(file_);
  file_ = -1;
  if (closed != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    unlink(temporary_.c_str());
    throw Error(str("cannot write ", path_, ": ", std::strerror(reason)));
  }
  const std::string directory = directory_of(path_);
  const int handle = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool durable = handle >= 0 && (fsync(handle) == 0 || errno == EINVAL);
  const int reason = errno;
  if (handle >= 0) close(handle);
  require(durable, "cannot make ", path_, " durable: ", directory, ": ", std::strerror(reason));
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void remove_temporaries(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    if (is_temporary(entry.path().filename().string()))
      std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace tilefold
