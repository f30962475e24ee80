#include "io/checkpoint_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/input_file.h"

namespace tilefold {
namespace {

constexpr char kMagic[] = "tilefold checkpoint 1\n";
constexpr char kChecksumAttribute[] = "xxh64";

struct Trailer {
  char magic[40] = {};
  std::uint64_t bytes = 0;  // of the HDF5 part
  std::uint64_t hash = 0;   // of the HDF5 part
  std::uint64_t own = 0;    // of the fields above
};
static_assert(sizeof(Trailer) == 64);
constexpr std::int64_t kTrailerBytes = sizeof(Trailer);

std::uint64_t own_hash(const Trailer& trailer) {
  return checksum(std::as_bytes(std::span(&trailer, 1)).first(offsetof(Trailer, own)));
}

Trailer make_trailer(std::uint64_t bytes, std::uint64_t hash) {
  Trailer trailer;
  std::memcpy(trailer.magic, kMagic, sizeof(kMagic));
  trailer.bytes = bytes;
  trailer.hash = hash;
  trailer.own = own_hash(trailer);
  return trailer;
}

// `path` for messages; `file` is what is read.
void verify_whole(const std::string& path, const std::string& file_path) {
  const InputFile file(file_path);
  require(file.size() > kTrailerBytes, "cannot read ", path,
          ": no whole checkpoint (expected more than ", kTrailerBytes, " bytes, found ",
          file.size(), ")");
  Trailer trailer;
  file.read(file.size() - kTrailerBytes, std::as_writable_bytes(std::span(&trailer, 1)));
  const bool sound =
      std::memcmp(trailer.magic, kMagic, sizeof(kMagic)) == 0 && trailer.own == own_hash(trailer);
  require(sound, "cannot read ", path, ": cut or damaged, or no tilefold checkpoint (its last ",
          kTrailerBytes, " of ", file.size(), " bytes are no trailer)");
  const std::int64_t bytes = file.size() - kTrailerBytes;
  require(trailer.bytes == static_cast<std::uint64_t>(bytes), "cannot read ", path,
          ": damaged (expected ", trailer.bytes + kTrailerBytes, " bytes, found ", file.size(),
          ")");
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, bytes)));
  Checksum sum;
  for (std::int64_t at = 0; at < bytes; at += kPiece) {
    const std::span<std::byte> now(piece.data(),
                                   static_cast<std::size_t>(std::min(kPiece, bytes - at)));
    file.read(at, now);
    sum.add(now);
  }
  require(sum.value() == trailer.hash, "cannot read ", path, ": damaged (", bytes,
          " bytes do not have the checksum that was saved with them)");
}

const std::string& verified(const std::string& path) {
  verify_checkpoint_file(path);
  return path;
}

std::span<const std::byte> bytes_of(ConstTensor t) {
  return {static_cast<const std::byte*>(t.data), static_cast<std::size_t>(t.bytes())};
}

// NUMBER of "step-NUMBER.h5".
std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view kStart = "step-", kEnd = ".h5";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(std::min(kEnd.size(), name.size()));
  std::int64_t step = 0;
  const auto result = std::from_chars(name.data(), name.data() + name.size(), step);
  if (name.empty() || name[0] == '-' || result.ec != std::errc() ||
      result.ptr != name.data() + name.size())
    return std::nullopt;
  return step;
}

bool is_whole(const std::string& path) {
  try {
    verify_checkpoint_file(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void CheckpointWriter::add(const std::string& name, ConstTensor host) { file_.add(name, host); }

void CheckpointWriter::set(const std::string& name, std::string text) {
  file_.add_text(name, std::move(text));
}

void CheckpointWriter::set(const std::string& name, std::int64_t number) {
  file_.set("", name, number);
}

void CheckpointWriter::save(const std::string& path) {
  file_.hash_arrays(kChecksumAttribute, [](std::span<const std::byte> bytes) {
    return static_cast<std::int64_t>(checksum(bytes));
  });
  AtomicFile out(path);
  Checksum sum;
  file_.write([&](std::span<const std::byte> bytes) {
    sum.add(bytes);
    out.write(bytes);
  });
  const Trailer trailer = make_trailer(static_cast<std::uint64_t>(out.bytes()), sum.value());
  out.write(std::as_bytes(std::span(&trailer, 1)));
  out.sync();
  verify_whole(path, out.temporary_path());
  Hdf5Reader(out.temporary_path(), Hdf5Trust::checked);  // libhdf5 finds its way in it, too
  out.commit();
}

CheckpointReader::CheckpointReader(const std::string& path)
    : file_(verified(path), Hdf5Trust::checked), numbers_(file_.attributes()) {
  for (const std::string& name : file_.names())
    if (file_.attributes(name).contains(kChecksumAttribute)) arrays_.push_back(name);
}

bool CheckpointReader::has(const std::string& name) const {
  return file_.has(name) || numbers_.contains(name);
}

std::string CheckpointReader::text(const std::string& name) const {
  require(file_.has(name), path(), ": the part '", name, "' is missing (a text)");
  return file_.text(name);
}

std::int64_t CheckpointReader::number(const std::string& name) const {
  const auto at = numbers_.find(name);
  const std::int64_t* value =
      at == numbers_.end() ? nullptr : std::get_if<std::int64_t>(&at->second);
  require(value != nullptr, path(), ": the part '", name, "' is missing (an integer)");
  return *value;
}

Hdf5Info CheckpointReader::info(const std::string& name) const {
  require(std::binary_search(arrays_.begin(), arrays_.end(), name), path(), ": the part '", name,
          "' is missing (an array)");
  return file_.info(name);
}

void CheckpointReader::read(const std::string& name, Tensor host) const {
  info(name);
  file_.read(name, host);
  const Hdf5Value saved = file_.attributes(name).at(kChecksumAttribute);
  const auto* hash = std::get_if<std::int64_t>(&saved);
  require(hash && *hash == static_cast<std::int64_t>(checksum(bytes_of(host))), path(), ": '", name,
          "' does not have the checksum that was saved with it");
}

void verify_checkpoint_file(const std::string& path) { verify_whole(path, path); }

std::vector<std::string> list_checkpoints(const std::string& directory) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    if (step) found.emplace_back(*step, it->path().string());
  }
  require(!error || error == std::errc::no_such_file_or_directory, "cannot list ", directory, ": ",
          error.message());
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

void prune(const std::string& directory, std::int64_t keep) {
  expect(keep >= 1, "at least one checkpoint is kept");
  const std::vector<std::string> all = list_checkpoints(directory);
  const auto kept = static_cast<std::size_t>(keep);
  if (all.size() <= kept) return;
  if (std::none_of(all.begin(), all.begin() + keep, is_whole)) return;
  for (std::size_t i = kept; i < all.size(); ++i) {
    std::error_code error;
    std::filesystem::remove(all[i], error);
    require(!error, "cannot delete ", all[i], ": ", error.message());
  }
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  require(!error, "cannot make ", directory, ": ", error.message());
  const std::string path = directory + "/lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require(file_ >= 0, "cannot write ", path, ": ", std::strerror(errno));
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  // File systems without locks let everyone in, as they must.
  if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) return;
  const int reason = errno;
  close(file_);
  require(reason == EWOULDBLOCK, "cannot lock ", path, ": ", std::strerror(reason));
  throw Error(str(directory, " is in use by another run (", path,
                  " is locked); wait for it or choose another run.out"));
}

DirectoryLock::~DirectoryLock() { close(file_); }

}  // namespace tilefold
