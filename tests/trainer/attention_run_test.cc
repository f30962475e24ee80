// `tilefold attention run`: files in, files out.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "io/hdf5.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"
#include "trainer/cli/attention.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

// A folder of its own, removed at the end.
struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / str("tilefold_attention_", getpid())) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator()(const char* name) const { return path / name; }
  std::filesystem::path path;
};

std::vector<float> floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

// The arrays of IN, alive until it is saved.
struct InFile {
  InFile(const Problem& p, const Inputs& in)
      : q(floats(in.q)), k(floats(in.k)), v(floats(in.v)), d_o(floats(in.d_o)) {
    writer.add("q", ConstTensor(q.data(), DType::f32, p.q_shape()));
    writer.add("k", ConstTensor(k.data(), DType::f32, p.k_shape()));
    writer.add("v", ConstTensor(v.data(), DType::f32, p.k_shape()));
  }
  void add_do(const Problem& p) {
    writer.add("do", ConstTensor(d_o.data(), DType::f32, p.q_shape()));
  }
  std::vector<float> q, k, v, d_o;
  Hdf5Writer writer;
};

std::vector<double> read(const Hdf5Reader& in, const std::string& name, const Shape& shape) {
  CHECK(in.info(name).dtype == DType::f32);
  CHECK(in.info(name).shape == shape);
  std::vector<float> x(static_cast<std::size_t>(shape.numel()));
  in.read(name, Tensor(x.data(), DType::f32, shape));
  return {x.begin(), x.end()};
}

AttentionRunSettings settings(const Folder& folder) {
  AttentionRunSettings s;
  s.in = folder("in.h5"), s.out = folder("out.h5"), s.device = "cpu", s.threads = 2;
  return s;
}

// The error's one line holds every one of `parts`.
void check_refused(const AttentionRunSettings& s, std::initializer_list<const char*> parts) {
  try {
    attention_run(s);
  } catch (const Error& error) {
    INFO(error.what());
    for (const char* part : parts) CHECK(std::strstr(error.what(), part) != nullptr);
    CHECK_FALSE(std::filesystem::exists(s.out));
    return;
  }
  FAIL_CHECK("accepted what should be refused: " << *parts.begin());
}

}  // namespace

TEST_CASE("forward and backward of a file are those of the op, in every dtype") {
  const Folder folder;
  Cpu cpu(2);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem p;
    p.seq_q = 9, p.seq_k = 12, p.heads = 4, p.kv_heads = 2, p.d = 16;
    p.dtype = dtype;
    p.options.causal = true, p.options.softcap = 2, p.options.window_left = 6;
    p.cu_q = {0, 3, 8}, p.cu_k = {0, 5, 12};
    const Inputs in = normal_inputs(p, 1);
    {
      InFile file(p, in);
      file.add_do(p);
      file.writer.add("cu_seqlens_q", ConstTensor(p.cu_q.data(), DType::i64, {3}));
      file.writer.add("cu_seqlens_k", ConstTensor(p.cu_k.data(), DType::i64, {3}));
      file.writer.set("", "causal", std::int64_t{1});
      file.writer.set("", "softcap", 2.0);
      file.writer.set("", "window_left", std::int64_t{6});
      file.writer.save(folder("in.h5"));
    }
    AttentionRunSettings s = settings(folder);
    s.dtype = name_of(dtype);
    attention_run(s);

    const Hdf5Reader out(s.out);
    const Outputs want = run(cpu.context(), p, in);
    const Shape rows{1, 4, 9};
    CHECK(read(out, "o", p.q_shape()) == want.o);
    CHECK(read(out, "m", rows) == want.m);
    CHECK(read(out, "l", rows) == want.l);
    CHECK(read(out, "dq", p.q_shape()) == want.dq);
    CHECK(read(out, "dk", p.k_shape()) == want.dk);
    CHECK(read(out, "dv", p.k_shape()) == want.dv);
    const std::vector<double> lse = read(out, "lse", rows);
    for (std::size_t i = 0; i < lse.size(); ++i)
      CHECK((lse[i] == want.lse()[i] || lse[i] == Approx(want.lse()[i]).epsilon(1e-6)));
    const auto attributes = out.attributes();
    CHECK(std::get<std::string>(attributes.at("dtype")) == name_of(dtype));
    CHECK(std::get<std::string>(attributes.at("device")) == "cpu");
    CHECK(std::get<std::string>(attributes.at("strategy")) != "auto");
  }
}

TEST_CASE("without do only the forward is there") {
  const Folder folder;
  Problem p;
  p.seq_q = 3, p.seq_k = 4;
  InFile file(p, normal_inputs(p, 1));
  file.writer.save(folder("in.h5"));
  AttentionRunSettings s = settings(folder);
  s.strategy = "naive";
  attention_run(s);
  const Hdf5Reader out(s.out);
  CHECK(out.names() == std::vector<std::string>{"l", "lse", "m", "o"});
  CHECK(std::get<std::string>(out.attributes().at("strategy")) == "naive");
}

TEST_CASE("anything else in the file is an error") {
  const Folder folder;
  Problem p;
  p.seq_q = 3, p.seq_k = 4;
  const Inputs in = normal_inputs(p, 1);
  const AttentionRunSettings s = settings(folder);
  const float extra[] = {1, 2};
  const auto refused = [&](auto&& spoil, std::initializer_list<const char*> parts) {
    InFile file(p, in);
    spoil(file.writer);
    file.writer.save(s.in);
    check_refused(s, parts);
  };
  refused([&](Hdf5Writer& w) { w.add("bias", ConstTensor(extra, DType::f32, {2})); },
          {"in.h5", "'bias'", "cu_seqlens_q"});
  refused([&](Hdf5Writer& w) { w.add_text("note", "x"); }, {"'note'"});
  refused([&](Hdf5Writer& w) { w.set("", "casual", std::int64_t{1}); }, {"'casual'", "causal"});
  refused([&](Hdf5Writer& w) { w.set("", "causal", std::int64_t{2}); }, {"'causal' is 2", "0, 1"});
  refused([&](Hdf5Writer& w) { w.set("", "scale", std::string("x")); }, {"'scale'", "number"});
  refused([&](Hdf5Writer& w) { w.set("", "window_right", std::int64_t{-2}); },
          {"window_right is -2"});
  refused([&](Hdf5Writer& w) { w.set("q", "scale", 1.0); }, {"'scale'", "'q'"});
  const std::int64_t offsets[] = {0, 4};
  refused([&](Hdf5Writer& w) { w.add("cu_seqlens_q", ConstTensor(offsets, DType::i64, {2})); },
          {"cu_seqlens_k", "missing"});
  refused(
      [&](Hdf5Writer& w) {
        w.add("cu_seqlens_q", ConstTensor(offsets, DType::i64, {2}));
        w.add("cu_seqlens_k", ConstTensor(offsets, DType::i64, {2}));
      },
      {"cu_seqlens_q", "3"});

  Hdf5Writer none;
  none.save(s.in);
  check_refused(s, {"'q' is missing"});
  AttentionRunSettings same = s;
  same.out = same.in;
  CHECK_THROWS_AS(attention_run(same), UsageError);
}
