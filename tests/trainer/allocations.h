// Counts what the program takes from the heap through operator new: include in one source file of a
// test program, whose operator new it replaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tilefold::test {

inline std::atomic<std::int64_t> allocations{0};

inline void* counted(std::size_t bytes) noexcept {
  ++allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}
inline void* counted(std::size_t bytes, std::align_val_t alignment) noexcept {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
inline void* or_throw(void* p) { return p != nullptr ? p : throw std::bad_alloc(); }

}  // namespace tilefold::test

// Every form, or a sanitizer sees memory of one allocator given back to another.
void* operator new(std::size_t n) { return tilefold::test::or_throw(tilefold::test::counted(n)); }
void* operator new[](std::size_t n) { return tilefold::test::or_throw(tilefold::test::counted(n)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return tilefold::test::counted(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return tilefold::test::counted(n);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return tilefold::test::or_throw(tilefold::test::counted(n, a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return tilefold::test::or_throw(tilefold::test::counted(n, a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
