#include "io/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "io/hdf5.h"
#include "io/input_file.h"

namespace tilefold {
namespace {

constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::int64_t kMostInMemory = std::int64_t{1} << 30;  // tokens, 4 bytes each

bool is_hdf5(const InputFile& file) {
  constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<std::byte, 8> head{};
  if (file.size() < 8) return false;
  file.read(0, head);
  return std::memcmp(head.data(), kSignature, 8) == 0;
}

template <class T>
void widen(const std::byte* from, std::span<std::int64_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<std::int64_t>(value);  // above 2^63: negative, so refused like one
  }
}

}  // namespace

struct TokenFile::Source {
  InputFile file;
  std::int64_t size = 0;    // tokens
  std::int64_t offset = 0;  // of the first, in bytes
  Hdf5Integers element{2, false};
  std::vector<std::int32_t> memory;  // all tokens, where the file cannot be read in place

  explicit Source(const std::string& path) : file(path) {}

  void open(const std::string& dataset);
  void open_plain();
  void open_hdf5(const std::string& dataset);
  template <class F>
  void each_piece(std::int64_t position, std::int64_t count, F&& use) const;
};

void TokenFile::Source::open(const std::string& dataset) {
  if (is_hdf5(file))
    open_hdf5(dataset);
  else
    open_plain();
  require(size > 0, file.path(), ": needed at least one token, found none (", file.size(),
          " bytes)");
}

void TokenFile::Source::open_plain() {
  std::array<std::int32_t, 3> head{};  // magic, version, tokens
  if (file.size() >= static_cast<std::int64_t>(sizeof(head)))
    file.read(0, std::as_writable_bytes(std::span(head)));
  const bool narrow = head[0] == 20240520 && head[1] == 1;
  const bool wide = head[0] == 20240801 && head[1] == 7;
  if (narrow || wide) {
    element.size = wide ? 4 : 2;
    offset = kHeaderBytes;
    size = head[2];
    require(size >= 0 && file.size() == kHeaderBytes + size * element.size, file.path(),
            ": the header says ", size, " tokens, so needed ", kHeaderBytes + size * element.size,
            " bytes, found ", file.size());
    return;
  }
  require(head[0] != 20240520 && head[0] != 20240801, file.path(), ": token file of version ",
          head[1], ", needed 1 (uint16) or 7 (uint32)");
  require(file.size() % 2 == 0, file.path(), ": needed 2 bytes a token, found the odd number of ",
          file.size(), " bytes");
  size = file.size() / 2;
}

void TokenFile::Source::open_hdf5(const std::string& dataset) {
  const Hdf5Reader reader(file.path());
  element = reader.integers(dataset);
  size = element.count;
  if (const auto at = reader.offset(dataset)) {
    offset = *at;
    require(size <= (file.size() - offset) / element.size, file.path(), ": ", dataset, ": needed ",
            size, " tokens of ", element.size, " bytes from byte ", offset, ", found ", file.size(),
            " bytes");
    return;
  }
  require(size <= kMostInMemory, file.path(), ": ", dataset, ": ", size,
          " tokens that are chunked, filtered or big-endian, so in memory; at most ", kMostInMemory,
          " are allowed: store it contiguous and little-endian");
  memory.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> piece(1 << 16);
  for (std::int64_t first = 0; first < size;) {
    const std::int64_t n = std::min<std::int64_t>(1 << 16, size - first);
    const std::span<std::int64_t> now(piece.data(), static_cast<std::size_t>(n));
    reader.read_integers(dataset, first, now);
    for (const std::int64_t id : now) {
      require(id >= 0 && id <= std::numeric_limits<std::int32_t>::max(), file.path(), ": token ",
              id, " at position ", first, " is no token id");
      memory[static_cast<std::size_t>(first++)] = static_cast<std::int32_t>(id);
    }
  }
}

// use(first position, ids as int64) over pieces that fit a small buffer.
template <class F>
void TokenFile::Source::each_piece(std::int64_t position, std::int64_t count, F&& use) const {
  constexpr std::int64_t kPiece = 2048;
  expect(position >= 0 && count >= 0 && position <= size && count <= size - position,
         "tokens outside the file");
  std::array<std::int64_t, kPiece> ids;
  std::array<std::byte, kPiece * 8> raw;
  for (const std::int64_t end = position + count; position < end;) {
    const auto n = static_cast<std::size_t>(std::min(kPiece, end - position));
    const std::span<std::int64_t> now(ids.data(), n);
    if (!memory.empty()) {
      std::copy_n(memory.begin() + position, n, ids.begin());
    } else {
      file.read(offset + position * element.size,
                {raw.data(), n * static_cast<std::size_t>(element.size)});
      const bool sign = element.is_signed;
      switch (element.size) {
        case 1:
          sign ? widen<std::int8_t>(raw.data(), now) : widen<std::uint8_t>(raw.data(), now);
          break;
        case 2:
          sign ? widen<std::int16_t>(raw.data(), now) : widen<std::uint16_t>(raw.data(), now);
          break;
        case 4:
          sign ? widen<std::int32_t>(raw.data(), now) : widen<std::uint32_t>(raw.data(), now);
          break;
        default:
          widen<std::int64_t>(raw.data(), now);
      }
    }
    use(position, std::span<const std::int64_t>(now));
    position += static_cast<std::int64_t>(n);
  }
}

TokenFile::TokenFile(const std::string& path, const std::string& dataset)
    : source_(std::make_unique<Source>(path)) {
  source_->open(dataset);
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

const std::string& TokenFile::path() const { return source_->file.path(); }
std::int64_t TokenFile::size() const { return source_->size; }

void TokenFile::read(std::int64_t position, std::int64_t vocab,
                     std::span<std::int32_t> into) const {
  std::int32_t* out = into.data();  // [into.size()]
  source_->each_piece(position, static_cast<std::int64_t>(into.size()),
                      [&](std::int64_t first, std::span<const std::int64_t> ids) {
                        for (const std::int64_t id : ids) {
                          require(id >= 0 && id < vocab, path(), ": token ", id, " at position ",
                                  first, " is outside the vocabulary of ", vocab,
                                  " (allowed: 0 to ", vocab - 1, ")");
                          *out++ = static_cast<std::int32_t>(id);
                          ++first;
                        }
                      });
}

std::int64_t TokenFile::vocabulary() const {
  std::int64_t largest = -1;
  source_->each_piece(0, size(), [&](std::int64_t first, std::span<const std::int64_t> ids) {
    for (const std::int64_t id : ids) {
      require(id >= 0 && id < std::numeric_limits<std::int32_t>::max(), path(), ": token ", id,
              " at position ", first, " is no token id");
      largest = std::max(largest, id);
      ++first;
    }
  });
  return largest + 1;
}

}  // namespace tilefold
