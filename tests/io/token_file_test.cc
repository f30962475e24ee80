#include "io/token_file.h"

#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "io/hdf5.h"
#include "io/text_file.h"
#include "tests/catch.h"
#include "tests/io/support.h"

namespace tilefold {
namespace {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<std::uint16_t> counting(std::size_t n) {
  std::vector<std::uint16_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::uint16_t>(i * 31 % 60000);
  return ids;
}

std::string llm_c(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = tokens;
  return bytes_of(header);
}

std::vector<std::int32_t> all_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.read(0, 65536, ids);
  return ids;
}

TEST_CASE("headerless and llm.c files hold the same tokens") {
  const TemporaryDirectory scratch;
  const std::vector<std::uint16_t> ids = counting(5001);
  const std::vector<std::uint32_t> wide(ids.begin(), ids.end());
  write_bytes(scratch.file("plain.bin"), bytes_of(ids));
  write_bytes(scratch.file("llmc.bin"), llm_c(20240520, 1, 5001) + bytes_of(ids));
  write_bytes(scratch.file("llama.bin"), llm_c(20240801, 7, 5001) + bytes_of(wide));
  for (const char* name : {"plain.bin", "llmc.bin", "llama.bin"}) {
    const TokenFile file(scratch.file(name), "");
    REQUIRE(file.size() == 5001);
    REQUIRE(all_of(file) == std::vector<std::int32_t>(ids.begin(), ids.end()));
    REQUIRE(file.vocabulary() == 1 + *std::max_element(ids.begin(), ids.end()));
    std::int32_t three[3];
    file.read(4998, 60000, three);
    REQUIRE(three[2] == ids[5000]);
    file.read(5001, 60000, {});
  }
}

template <class T>
void check_hdf5(const TemporaryDirectory& scratch, DType dtype) {
  std::vector<T> ids(3000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<T>(i % 200);
  Hdf5Writer writer;
  writer.add("data/tokens", ConstTensor(ids.data(), dtype, {3000}));
  writer.save(scratch.file("t.h5"));
  const TokenFile file(scratch.file("t.h5"), "data/tokens");
  REQUIRE(all_of(file) == std::vector<std::int32_t>(ids.begin(), ids.end()));
}

TEST_CASE("HDF5 token sets of several integer types") {
  const TemporaryDirectory scratch;
  check_hdf5<std::uint8_t>(scratch, DType::u8);
  check_hdf5<std::uint16_t>(scratch, DType::u16);
  check_hdf5<std::int32_t>(scratch, DType::i32);
  check_hdf5<std::int64_t>(scratch, DType::i64);
  CHECK(error_of([&] { TokenFile(scratch.file("t.h5"), "tokens"); }) ==
        scratch.file("t.h5") + ": no array named tokens (it has: data/tokens)");
}

TEST_CASE("an HDF5 token set is one-dimensional and of integers") {
  const TemporaryDirectory scratch;
  const std::vector<float> real(6);
  const std::vector<std::int32_t> ids(6);
  Hdf5Writer writer;
  writer.add("real", ConstTensor(real.data(), DType::f32, {6}));
  writer.add("flat", ConstTensor(ids.data(), DType::i32, {2, 3}));
  writer.add("none", ConstTensor(ids.data(), DType::i32, {0}));
  writer.save(scratch.file("t.h5"));
  const auto error = [&](const char* name) {
    return error_of([&] { TokenFile(scratch.file("t.h5"), name); });
  };
  CHECK(error("real").find("not an array of integers") != std::string::npos);
  CHECK(error("flat").find("has 2 dimensions, needed 1") != std::string::npos);
  CHECK(error("none").find("needed at least one token") != std::string::npos);
}

TEST_CASE("ids outside the vocabulary are refused with file and position") {
  const TemporaryDirectory scratch;
  std::vector<std::uint16_t> ids(10000, 5);
  ids[7777] = 65535;
  const std::string path = scratch.file("t.bin");
  write_bytes(path, bytes_of(ids));
  const TokenFile file(path, "");
  std::vector<std::int32_t> into(3000);
  file.read(0, 6, into);
  CHECK(error_of([&] { file.read(7000, 50257, into); }) ==
        path +
            ": token 65535 at position 7777 is outside the vocabulary of 50257 (allowed: 0 to "
            "50256)");
  CHECK_FALSE(error_of([&] { file.read(0, 5, into); }).empty());  // id 5 itself
  file.read(7000, 65536, into);
  CHECK(into[777] == 65535);

  const std::vector<std::int32_t> negative{3, -1};
  Hdf5Writer writer;
  writer.add("tokens", ConstTensor(negative.data(), DType::i32, {2}));
  writer.save(scratch.file("t.h5"));
  const TokenFile hdf5(scratch.file("t.h5"), "tokens");
  CHECK(error_of([&] { hdf5.vocabulary(); }).find("token -1 at position 1") != std::string::npos);
  CHECK(error_of([&] { hdf5.read(0, 10, std::span(into).first(2)); }).find("token -1") !=
        std::string::npos);
}

TEST_CASE("what is short, odd or unreadable says what was needed and found") {
  const TemporaryDirectory scratch;
  const auto error = [&](const std::string& bytes) {
    write_bytes(scratch.file("t.bin"), bytes);
    return error_of([&] { TokenFile(scratch.file("t.bin"), ""); });
  };
  const std::string path = scratch.file("t.bin");
  CHECK(error("") == path + ": needed at least one token, found none (0 bytes)");
  CHECK(error("abc") == path + ": needed 2 bytes a token, found the odd number of 3 bytes");
  CHECK(error(llm_c(20240520, 1, 10) + "12345678") ==
        path + ": the header says 10 tokens, so needed 1044 bytes, found 1032");
  CHECK(error(llm_c(20240520, 1, 10).substr(0, 100)).find("found 100") != std::string::npos);
  CHECK(error(llm_c(20240520, 2, 10)).find("version 2") != std::string::npos);
  CHECK(error(llm_c(20240520, 1, -10)).find("-10 tokens") != std::string::npos);
  CHECK(error(llm_c(20240520, 1, 0)).find("found none") != std::string::npos);
  CHECK(error_of([&] { TokenFile(scratch.file("none"), ""); }).find("No such file") !=
        std::string::npos);
  CHECK(error_of([&] { TokenFile(scratch.directory(), ""); }).find("not a regular file") !=
        std::string::npos);
}

TEST_CASE("a file cut while it is open is an Error") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("t.bin");
  write_bytes(path, bytes_of(counting(5000)));
  const TokenFile file(path, "");
  std::filesystem::resize_file(path, 4000);
  std::vector<std::int32_t> into(100);
  file.read(1900, 65536, into);
  CHECK(error_of([&] { file.read(1950, 65536, into); }).find("became shorter") !=
        std::string::npos);
}

TEST_CASE("positions beyond 2^31 and 2^32 tokens") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("big.bin");
  write_bytes(path, "");
  constexpr std::int64_t kTokens = (std::int64_t{1} << 32) + 10;
  std::filesystem::resize_file(path, 2 * kTokens);  // a hole
  FILE* out = std::fopen(path.c_str(), "r+b");
  const std::uint16_t mark = 4242;
  for (const std::int64_t at : {(std::int64_t{1} << 31) - 1, std::int64_t{1} << 31, kTokens - 1}) {
    fseeko(out, 2 * at, SEEK_SET);
    std::fwrite(&mark, 2, 1, out);
  }
  std::fclose(out);
  const TokenFile file(path, "");
  CHECK(file.size() == kTokens);
  std::int32_t ids[4];
  file.read((std::int64_t{1} << 31) - 2, 5000, ids);
  CHECK(std::vector<std::int32_t>(ids, ids + 4) == std::vector<std::int32_t>{0, 4242, 4242, 0});
  file.read(kTokens - 4, 5000, ids);
  CHECK(ids[3] == 4242);
  CHECK(error_of([&] { file.read(kTokens - 4, 4242, ids); }).find("position 4294967305") !=
        std::string::npos);
}

TEST_CASE("threads and forked processes read the right rows") {
  const TemporaryDirectory scratch;
  const std::vector<std::uint16_t> ids = counting(100000);
  Hdf5Writer writer;
  writer.add("tokens", ConstTensor(ids.data(), DType::u16, {100000}));
  writer.save(scratch.file("t.h5"));
  const TokenFile file(scratch.file("t.h5"), "tokens");
  const auto all_right = [&](std::uint64_t seed) {
    std::vector<std::int32_t> row(97);
    for (int i = 0; i < 500; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const auto at = static_cast<std::int64_t>((seed >> 33) % (100000 - 97));
      file.read(at, 65536, row);
      if (!std::equal(row.begin(), row.end(), ids.begin() + at)) return false;
    }
    return true;
  };
  bool right[4] = {};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) threads.emplace_back([&, t] { right[t] = all_right(t); });
  for (std::thread& thread : threads) thread.join();
  CHECK((right[0] && right[1] && right[2] && right[3]));
  for (std::uint64_t t = 0; t < 4; ++t) CHECK(in_child([&] { require(all_right(t), "row"); }) == 0);
}

TEST_CASE("text files are read whole") {
  const TemporaryDirectory scratch;
  write_bytes(scratch.file("t.txt"), std::string("a\0\xff\r\n", 5));
  CHECK(read_text_file(scratch.file("t.txt")) == std::string("a\0\xff\r\n", 5));
  write_bytes(scratch.file("t.txt"), "");
  CHECK(error_of([&] { read_text_file(scratch.file("t.txt")); }) ==
        "cannot read " + scratch.file("t.txt") + ": the file is empty");
  CHECK(error_of([&] { read_text_file(scratch.file("none")); }) ==
        "cannot read " + scratch.file("none") + ": No such file or directory");
}

}  // namespace
}  // namespace tilefold
