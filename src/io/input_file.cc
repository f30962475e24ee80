#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tilefold {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Non-blocking, or opening a pipe would wait for its writer.
  file_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file_ >= 0, "cannot read ", path_, ": ", std::strerror(errno));
  struct stat status {};
  if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file_);
    throw Error(str("cannot read ", path_, ": not a regular file"));
  }
  size_ = static_cast<std::int64_t>(status.st_size);
}

InputFile::~InputFile() {
  if (file_ >= 0) close(file_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

void InputFile::read(std::int64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t n = pread(file_, into.data(), into.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, "cannot read ", path_, " at byte ", offset, ": ",
            n < 0 ? std::strerror(errno) : "the file became shorter");
    into = into.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

}  // namespace tilefold
