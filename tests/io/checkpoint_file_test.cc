#include "io/checkpoint_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <numeric>

#include "io/atomic_file.h"
#include "io/checksum.h"
#include "tests/catch.h"
#include "tests/io/support.h"

namespace tilefold {
namespace {

struct Example {
  std::vector<float> weights = std::vector<float>(300);
  std::vector<bf16> copy = std::vector<bf16>(7, bf16(1.5f));
  std::vector<std::int64_t> offsets{0, 3, 9};
  std::vector<double> none;

  explicit Example(float first = 0) { std::iota(weights.begin(), weights.end(), first); }

  void save(const std::string& path) const {
    CheckpointWriter file;
    file.add("weights/layer 0/qkv", ConstTensor(weights.data(), DType::f32, {3, 100}));
    file.add("weights/layer 0/copy", ConstTensor(copy.data(), DType::bf16, {7}));
    file.add("offsets", ConstTensor(offsets.data(), DType::i64, {3}));
    file.add("none", ConstTensor(none.data(), DType::f64, {0, 4}));
    file.set("config", "run:\n  name: x\n");
    file.set("empty", "");
    file.set("step", std::int64_t{1} << 40);
    file.save(path);
  }
};

float first_weight(const std::string& path) {
  const CheckpointReader file(path);
  std::vector<float> weights(300);
  file.read("weights/layer 0/qkv", Tensor(weights.data(), DType::f32, {3, 100}));
  return weights[0];
}

TEST_CASE("xxh64 has the values of its specification") {
  const auto hash = [](std::string_view text) { return checksum(std::as_bytes(std::span(text))); };
  CHECK(hash("") == 0xEF46DB3751D8E999u);
  CHECK(hash("a") == 0xD24EC4F1A98C6E5Bu);
  CHECK(hash("abc") == 0x44BC2CF5AD770999u);
  CHECK(hash("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1u);
  std::string text(1000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37);
  for (const std::size_t piece : {1u, 7u, 31u, 32u, 33u, 999u}) {
    Checksum sum;
    for (std::size_t i = 0; i < text.size(); i += piece)
      sum.add(std::as_bytes(std::span(text)).subspan(i, std::min(piece, text.size() - i)));
    CHECK(sum.value() == hash(text));
  }
}

TEST_CASE("a checkpoint gives back what was saved") {
  const TemporaryDirectory scratch;
  const Example example;
  const std::string path = scratch.file("step-00000001.h5");
  example.save(path);
  const CheckpointReader file(path);
  CHECK(file.names() ==
        std::vector<std::string>{"none", "offsets", "weights/layer 0/copy", "weights/layer 0/qkv"});
  CHECK(file.number("step") == std::int64_t{1} << 40);
  CHECK(file.text("config") == "run:\n  name: x\n");
  CHECK(file.text("empty").empty());
  CHECK(file.has("config"));
  CHECK(file.has("step"));
  CHECK_FALSE(file.has("steps"));
  std::vector<float> weights(300);
  file.read("weights/layer 0/qkv", Tensor(weights.data(), DType::f32, {3, 100}));
  CHECK(weights == example.weights);
  std::vector<bf16> copy(7);
  CHECK(file.info("weights/layer 0/copy").dtype == DType::bf16);
  file.read("weights/layer 0/copy", Tensor(copy.data(), DType::bf16, {7}));
  CHECK(copy[6].bits == example.copy[6].bits);
  CHECK(file.info("none").shape == Shape{0, 4});
}

TEST_CASE("a missing or different part is named") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("a.h5");
  Example().save(path);
  const CheckpointReader file(path);
  std::vector<float> weights(300);
  const auto error = [&](const std::string& name, DType dtype, const Shape& shape) {
    return error_of([&] { file.read(name, Tensor(weights.data(), dtype, shape)); });
  };
  CHECK(error("adam_m/layer 0/qkv", DType::f32, {300}) ==
        path + ": the part 'adam_m/layer 0/qkv' is missing (an array)");
  CHECK(error("weights/layer 0/qkv", DType::f32, {300}) ==
        path + ": weights/layer 0/qkv: is f32 [3, 100], needed f32 [300]");
  CHECK(error("weights/layer 0/qkv", DType::i32, {3, 100}).find("needed i32") != std::string::npos);
  CHECK(error_of([&] { file.number("seed"); }) ==
        path + ": the part 'seed' is missing (an integer)");
  CHECK(error_of([&] { file.text("plan"); }) == path + ": the part 'plan' is missing (a text)");
}

TEST_CASE("a checkpoint cut at any length is refused") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("a.h5");
  Example().save(path);
  const std::string bytes = read_bytes(path);
  write_bytes(path, bytes + "x");
  CHECK_THROWS_AS(CheckpointReader(path), Error);
  for (std::size_t length = bytes.size(); length > 0;) {
    length -= length <= 200 || length + 200 > bytes.size() ? 1 : std::min(length, std::size_t{61});
    std::filesystem::resize_file(path, length);
    REQUIRE(error_of([&] { verify_checkpoint_file(path); }).find(path) != std::string::npos);
    REQUIRE_THROWS_AS(CheckpointReader(path), Error);
  }
}

TEST_CASE("any changed byte of a checkpoint is found") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("a.h5");
  Example().save(path);
  const std::string bytes = read_bytes(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    file.flush();
  };
  for (std::size_t i = 0; i < bytes.size(); i += i < 600 || i + 600 > bytes.size() ? 1 : 53) {
    put(i, static_cast<char>(bytes[i] ^ (1 << (i % 8))));
    REQUIRE(error_of([&] { verify_checkpoint_file(path); }).find(path) != std::string::npos);
    if (i % 101 == 0) REQUIRE_THROWS_AS(CheckpointReader(path), Error);
    put(i, bytes[i]);
  }
  CHECK(error_of([&] { verify_checkpoint_file(path); }).empty());
}

TEST_CASE("a file of zeros, another HDF5 file, a directory and a missing file are no checkpoints") {
  const TemporaryDirectory scratch;
  write_bytes(scratch.file("zeros.h5"), std::string(4096, '\0'));
  CHECK(error_of([&] { CheckpointReader(scratch.file("zeros.h5")); }).find("trailer") !=
        std::string::npos);
  Hdf5Writer().save(scratch.file("plain.h5"));
  CHECK(error_of([&] { CheckpointReader(scratch.file("plain.h5")); }).find("trailer") !=
        std::string::npos);
  CHECK(error_of([&] { CheckpointReader(scratch.directory()); }).find("regular") !=
        std::string::npos);
  CHECK(error_of([&] { CheckpointReader(scratch.file("none.h5")); }).find("No such file") !=
        std::string::npos);
}

TEST_CASE("a save that hits a size limit fails with an Error and keeps the old file") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("step-1.h5");
  Example(1).save(path);
  const auto full = static_cast<rlim_t>(std::filesystem::file_size(path));
  for (rlim_t limit = 0; limit < full; limit += full / 40 + 1) {
    const int status = in_child([&] {
      const rlimit bound{limit, limit};
      setrlimit(RLIMIT_FSIZE, &bound);
      Example(2).save(path);
    });
    REQUIRE(status == 3);
    REQUIRE(first_weight(path) == 1);
  }
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.directory()), {}) == 1);
}

TEST_CASE("killed at any time while saving, an old or new checkpoint is whole") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("step-1.h5");
  Example(1).save(path);
  int killed = 0, leftovers = 0;
  for (int round = 0; round < 100; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) Example(2).save(path);
    }
    usleep(static_cast<useconds_t>(200 + round * 97 % 9000));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    const float first = first_weight(path);
    REQUIRE((first == 1 || first == 2));
    REQUIRE(list_checkpoints(scratch.directory()) == std::vector<std::string>{path});
    leftovers += std::distance(std::filesystem::directory_iterator(scratch.directory()), {}) > 1;
  }
  CHECK(killed == 100);
  CHECK(leftovers > 0);  // some were killed in the middle
  for (const char* name : {"mine.partial", ".5.partial", "x.7a.partial"})
    write_bytes(scratch.file(name), "not ours");
  remove_temporaries(scratch.directory());
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.directory()), {}) == 1 + 3);
}

TEST_CASE("what is no regular file is not replaced, and a link's target is") {
  const TemporaryDirectory scratch;
  REQUIRE(mkfifo(scratch.file("pipe").c_str(), 0600) == 0);
  for (const std::string& path :
       {std::string("/dev/null"), scratch.file("pipe"), scratch.directory()}) {
    const auto before = std::filesystem::status(path).type();
    CHECK(error_of([&] { write_file_atomically(path, "x"); }).find("no regular file") !=
          std::string::npos);
    CHECK(std::filesystem::status(path).type() == before);
  }
  write_bytes(scratch.file("file"), "old");
  std::filesystem::create_symlink("file", scratch.file("link"));
  write_file_atomically(scratch.file("link"), "new");
  CHECK(read_bytes(scratch.file("file")) == "new");
  CHECK(std::filesystem::is_symlink(scratch.file("link")));
}

TEST_CASE("checkpoints are listed by number, newest first") {
  const TemporaryDirectory scratch;
  for (const char* name :
       {"step-00000009.h5", "step-100.h5", "step-00000020.h5", "step-7.h5.12.partial", "step-x.h5",
        "step-.h5", "step--3.h5", "other.h5"})
    write_bytes(scratch.file(name), "x");
  CHECK(list_checkpoints(scratch.directory()) ==
        std::vector<std::string>{scratch.file("step-100.h5"), scratch.file("step-00000020.h5"),
                                 scratch.file("step-00000009.h5")});
  CHECK(list_checkpoints(scratch.file("none")).empty());
}

TEST_CASE("pruning keeps the newest, and never deletes the only whole one") {
  const TemporaryDirectory scratch;
  const auto path = [&](int step) { return scratch.file(str("step-", step, ".h5")); };
  for (int step = 1; step <= 5; ++step) Example().save(path(step));
  prune(scratch.directory(), 3);
  CHECK(list_checkpoints(scratch.directory()) ==
        std::vector<std::string>{path(5), path(4), path(3)});
  write_bytes(path(5), "cut");
  write_bytes(path(4), "cut");
  prune(scratch.directory(), 2);
  CHECK(list_checkpoints(scratch.directory()).size() == 3);
  Example().save(path(6));
  prune(scratch.directory(), 1);
  CHECK(list_checkpoints(scratch.directory()) == std::vector<std::string>{path(6)});
}

TEST_CASE("a second writer is refused, until the first is gone") {
  const TemporaryDirectory scratch;
  const std::string directory = scratch.file("run");
  {
    const DirectoryLock first(directory);
    CHECK(error_of([&] { DirectoryLock second(directory); }).find("in use by another run") !=
          std::string::npos);
    CHECK(in_child([&] { DirectoryLock second(directory); }) == 3);
  }
  CHECK(in_child([&] { DirectoryLock second(directory); }) == 0);
  CHECK(error_of([&] { DirectoryLock third(directory); }).empty());
}

}  // namespace
}  // namespace tilefold
