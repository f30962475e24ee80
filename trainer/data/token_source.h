// A sequence of token ids that can be read anywhere, whatever it is kept in.
#pragma once

#include <cstdint>
#include <span>

namespace tilefold {

// Thread-safe; read() allocates nothing.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  // Tokens [first, first + out.size()). REQUIRES: they lie in [0, size()).
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
};

}  // namespace tilefold
