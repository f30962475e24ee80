#include "io/hdf5.h"

#include <hdf5.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <numeric>

#include "tests/catch.h"
#include "tests/io/support.h"

namespace tilefold {
namespace {

template <class T>
void round_trip(const TemporaryDirectory& scratch, const Shape& shape) {
  std::vector<T> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(i % 97) + 1);
  Hdf5Writer writer;
  writer.add("a/b/c", ConstTensor(values.data(), dtype_of<T>(), shape));
  writer.save(scratch.file("t.h5"));
  const Hdf5Reader reader(scratch.file("t.h5"));
  REQUIRE(reader.names() == std::vector<std::string>{"a/b/c"});
  REQUIRE(reader.info("a/b/c").dtype == dtype_of<T>());
  REQUIRE(reader.info("a/b/c").shape == shape);
  std::vector<T> back(values.size());
  reader.read("a/b/c", Tensor(back.data(), dtype_of<T>(), shape));
  REQUIRE(std::equal(values.begin(), values.end(), back.begin(),
                     [](T x, T y) { return std::memcmp(&x, &y, sizeof(T)) == 0; }));
}

TEST_CASE("arrays come back with type, shape and bits") {
  const TemporaryDirectory scratch;
  round_trip<float>(scratch, {2, 3, 5, 7});
  round_trip<double>(scratch, {1000});
  round_trip<bf16>(scratch, {3, 4});
  round_trip<f16>(scratch, {3, 4});
  round_trip<std::int32_t>(scratch, {5, 1, 1});
  round_trip<std::int64_t>(scratch, {17});
  round_trip<std::uint16_t>(scratch, {2, 2});
  round_trip<std::uint8_t>(scratch, {9});
  round_trip<float>(scratch, {});
  round_trip<float>(scratch, {4, 0, 3});
}

TEST_CASE("attributes and texts come back") {
  const TemporaryDirectory scratch;
  const float one = 1;
  Hdf5Writer writer;
  writer.add("x", ConstTensor(&one, DType::f32, {1}));
  writer.add_text("long", std::string(300000, 'y'));
  writer.set("", "device", "cpu");
  writer.set("", "nothing", "");
  writer.set("", "scale", 0.1);
  writer.set("x", "count", std::int64_t{-5});
  writer.save(scratch.file("t.h5"));
  const Hdf5Reader reader(scratch.file("t.h5"));
  CHECK(reader.text("long") == std::string(300000, 'y'));
  const auto root = reader.attributes();
  CHECK(root.size() == 3);
  CHECK(std::get<std::string>(root.at("device")) == "cpu");
  CHECK(std::get<std::string>(root.at("nothing")).empty());
  CHECK(std::get<double>(root.at("scale")) == 0.1);
  CHECK(std::get<std::int64_t>(reader.attributes("x").at("count")) == -5);
  CHECK(error_of([&] { reader.text("x"); }).find("x: not a text") != std::string::npos);
  CHECK(error_of([&] { reader.attributes("z"); }).find("no object named z") != std::string::npos);
}

TEST_CASE("texts of the root are of variable length, as other programs read them best") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("t.h5");
  std::vector<float> values(1000, 2.5f);
  std::vector<std::string> texts;
  Hdf5Writer writer;
  for (int i = 0; i < 20; ++i) {
    texts.push_back(std::string(static_cast<std::size_t>(i * i * 150), static_cast<char>('a' + i)));
    writer.set("", str("text ", i), texts.back());  // more than one heap holds
    writer.add(str("array ", i), ConstTensor(values.data(), DType::f32, {1000}));
    writer.set(str("array ", i), "unit", "m/s \xc3\xbc");
  }
  writer.save(path);
  {
    const Hdf5Reader reader(path);
    const auto root = reader.attributes();
    for (int i = 0; i < 20; ++i) {
      CHECK(std::get<std::string>(root.at(str("text ", i))) == texts[static_cast<std::size_t>(i)]);
      const std::string name = str("array ", i);
      CHECK(std::get<std::string>(reader.attributes(name).at("unit")) == "m/s \xc3\xbc");
      std::vector<float> back(1000);
      reader.read(name, Tensor(back.data(), DType::f32, {1000}));
      CHECK(back == values);
    }
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t attribute = H5Aopen(file, "text 3", H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  CHECK(H5Tis_variable_str(type) > 0);
  CHECK(H5Tget_cset(type) == H5T_CSET_UTF8);
  H5Tclose(type);
  H5Aclose(attribute);
  H5Fclose(file);
}

TEST_CASE("many arrays, long names and deep groups fit the metadata block") {
  const TemporaryDirectory scratch;
  std::vector<std::int32_t> values(2000);
  std::iota(values.begin(), values.end(), 0);
  Hdf5Writer writer;
  const auto name = [](std::size_t i) {
    return str("group ", i % 40, "/", std::string(1 + i % 150, 'n'), "/layer ", i / 7, "/weight ",
               i);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    writer.add(name(i), ConstTensor(&values[i], DType::i32, {1}));
    writer.set(name(i), "note", std::string(i % 200, 'v'));
  }
  writer.save(scratch.file("t.h5"));
  const Hdf5Reader reader(scratch.file("t.h5"));
  REQUIRE(reader.names().size() == 2000);
  for (std::size_t i = 0; i < values.size(); i += 111) {
    std::int32_t value = -1;
    reader.read(name(i), Tensor(&value, DType::i32, {1}));
    REQUIRE(value == values[i]);
  }
  Hdf5Writer flat;
  for (std::size_t i = 0; i < values.size(); ++i)
    flat.add(str("w", i), ConstTensor(&values[i], DType::i32, {1}));
  flat.save(scratch.file("flat.h5"));
  CHECK(Hdf5Reader(scratch.file("flat.h5")).names().size() == 2000);
}

TEST_CASE("what is no HDF5 file is refused in one line") {
  const TemporaryDirectory scratch;
  const auto error = [&](const std::string& name) {
    const std::string message = error_of([&] { Hdf5Reader reader(scratch.file(name)); });
    CHECK(message.find(scratch.file(name)) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
    return message;
  };
  CHECK(error("none").find("No such file") != std::string::npos);
  CHECK(error(".").find("not a regular file") != std::string::npos);
  write_bytes(scratch.file("empty"), "");
  CHECK(error("empty").find("found 0") != std::string::npos);
  write_bytes(scratch.file("text"), std::string(500, 'x'));
  CHECK(error("text").find("no signature") != std::string::npos);
  mkfifo(scratch.file("pipe").c_str(), 0600);
  CHECK(error("pipe").find("not a regular file") != std::string::npos);
}

TEST_CASE("a cut file names the expected and the real size") {
  const TemporaryDirectory scratch;
  const std::vector<float> values(2000, 1.5f);
  Hdf5Writer writer;
  writer.add("x", ConstTensor(values.data(), DType::f32, {2000}));
  writer.save(scratch.file("t.h5"));
  const std::string bytes = read_bytes(scratch.file("t.h5"));
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{96},
                                   std::size_t{2048}, bytes.size() / 2, bytes.size() - 1}) {
    write_bytes(scratch.file("cut.h5"), bytes.substr(0, length));
    const std::string error = error_of([&] { Hdf5Reader reader(scratch.file("cut.h5")); });
    REQUIRE(error.find(str("found ", length)) != std::string::npos);
    if (length >= 64)
      REQUIRE(error.find(str("expected ", bytes.size(), " bytes")) != std::string::npos);
  }
  write_bytes(scratch.file("more.h5"), bytes + "bytes after the end are tolerated");
  CHECK(error_of([&] { Hdf5Reader reader(scratch.file("more.h5")); }).empty());
}

// A file made by libhdf5 itself, as other programs would.
struct Foreign {
  explicit Foreign(const std::string& path)
      : file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {}
  ~Foreign() { H5Fclose(file); }

  // A set of 1000 int32, 0, 1, 2, ...
  void add(const char* name, hid_t create, hid_t type = H5T_STD_I32LE, bool write = true) const {
    const hsize_t size = 1000;
    const hid_t space = H5Screate_simple(1, &size, nullptr);
    const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    std::vector<std::int32_t> values(1000);
    std::iota(values.begin(), values.end(), 0);
    if (write) H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(set);
    H5Sclose(space);
  }

  hid_t file;
};

hid_t chunked(hsize_t size) {
  const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(create, 1, &size);
  return create;
}

template <class F>
std::string foreign_error(F&& make) {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("t.h5");
  {
    const Foreign file(path);
    make(file, scratch);
  }
  return error_of([&] {
    const Hdf5Reader reader(path);
    for (const std::string& name : reader.names()) reader.info(name);
  });
}

TEST_CASE("what leads out of the file is refused before it is followed") {
  const auto contains = [](const std::string& message, const char* part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory& scratch) {
             write_bytes(scratch.file("secret"), std::string(4000, 's'));
             const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
             H5Pset_external(create, scratch.file("secret").c_str(), 0, 4000);
             f.add("x", create, H5T_STD_I32LE, false);
           }),
           "x: external storage refused");
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory& scratch) {
             { Foreign(scratch.file("other.h5")).add("y", H5P_DEFAULT); }
             H5Lcreate_external(scratch.file("other.h5").c_str(), "/y", f.file, "x", H5P_DEFAULT,
                                H5P_DEFAULT);
           }),
           "x: external link refused");
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory&) {
             f.add("y", H5P_DEFAULT);
             H5Lcreate_soft("/y", f.file, "x", H5P_DEFAULT, H5P_DEFAULT);
           }),
           "x: soft link refused");
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory& scratch) {
             const hsize_t size = 1000;
             const hid_t space = H5Screate_simple(1, &size, nullptr);
             const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
             H5Pset_virtual(create, space, scratch.file("other.h5").c_str(), "/y", space);
             f.add("x", create, H5T_STD_I32LE, false);
           }),
           "x: virtual data set refused");
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory&) {
             const hid_t create = chunked(100);
             H5Pset_nbit(create);
             f.add("x", create);
           }),
           "x: filter 5 refused (allowed: deflate, shuffle, fletcher32)");
  contains(foreign_error([](const Foreign& f, const TemporaryDirectory&) {
             H5Lcreate_hard(f.file, "/", f.file, "loop", H5P_DEFAULT, H5P_DEFAULT);
           }),
           "groups nested deeper than");
}

TEST_CASE("elements that were never written are refused") {
  const std::string late = foreign_error(
      [](const Foreign& f, const TemporaryDirectory&) { f.add("x", H5P_DEFAULT, H5T_STD_I32LE, false); });
  CHECK(late.find("x: not wholly written (needs 4000 bytes, has 0)") != std::string::npos);
  const std::string partly = foreign_error([](const Foreign& f, const TemporaryDirectory&) {
    f.add("x", chunked(100));
    const hid_t set = H5Dopen2(f.file, "x", H5P_DEFAULT);
    H5Dclose(set);
    const hsize_t size = 1000, most = H5S_UNLIMITED;
    const hid_t space = H5Screate_simple(1, &size, &most);
    const hid_t grown =
        H5Dcreate2(f.file, "y", H5T_STD_I32LE, space, H5P_DEFAULT, chunked(100), H5P_DEFAULT);
    const hsize_t start = 0, count = 150;
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &count, nullptr);
    const hid_t memory = H5Screate_simple(1, &count, nullptr);
    std::vector<std::int32_t> values(150, 7);
    H5Dwrite(grown, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, values.data());
    H5Dclose(grown);
  });
  CHECK(partly.find("y: not wholly written") != std::string::npos);
}

TEST_CASE("foreign layouts, byte orders, strings and truth values are read") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("t.h5");
  {
    const Foreign f(path);
    const hid_t packed = chunked(300);
    H5Pset_shuffle(packed);
    H5Pset_deflate(packed, 4);
    H5Pset_fletcher32(packed);
    f.add("packed", packed);
    f.add("big", H5P_DEFAULT, H5T_STD_I32BE);
    f.add("short", H5P_DEFAULT, H5T_STD_I16LE);
    const hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    const hid_t scalar = H5Screate(H5S_SCALAR);
    const char* hello = "hello";
    const hid_t attribute = H5Acreate2(f.file, "greeting", text, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, text, &hello);
    H5Aclose(attribute);
    const hid_t truth = H5Tenum_create(H5T_NATIVE_INT8);  // as h5py writes True
    std::int8_t value = 0;
    H5Tenum_insert(truth, "FALSE", &value);
    value = 1;
    H5Tenum_insert(truth, "TRUE", &value);
    const hid_t flag = H5Acreate2(f.file, "causal", truth, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(flag, truth, &value);
    H5Aclose(flag);
  }
  const Hdf5Reader reader(path);
  for (const char* name : {"packed", "big"}) {
    std::vector<std::int32_t> values(1000);
    reader.read(name, Tensor(values.data(), DType::i32, {1000}));
    REQUIRE(values[999] == 999);
    REQUIRE_FALSE(reader.offset(name).has_value());
  }
  std::vector<std::int64_t> widened(3);
  reader.read_integers("short", 500, widened);
  CHECK(widened == std::vector<std::int64_t>{500, 501, 502});
  CHECK(reader.offset("short").has_value());
  CHECK(error_of([&] { reader.read_integers("short", 998, widened); }).find("needed 998 .. 1001") !=
        std::string::npos);
  CHECK(error_of([&] { reader.info("short"); }).find("element type not supported") !=
        std::string::npos);
  CHECK(std::get<std::string>(reader.attributes().at("greeting")) == "hello");
  CHECK(std::get<std::int64_t>(reader.attributes().at("causal")) == 1);
}

TEST_CASE("reading does not need a lock") {
  const TemporaryDirectory scratch;
  const float one = 1;
  Hdf5Writer writer;
  writer.add("x", ConstTensor(&one, DType::f32, {1}));
  writer.save(scratch.file("t.h5"));
  FILE* other = std::fopen(scratch.file("t.h5").c_str(), "r+");
  REQUIRE(flock(fileno(other), LOCK_EX) == 0);
  CHECK(error_of([&] { Hdf5Reader reader(scratch.file("t.h5")); }).empty());
  std::fclose(other);
}

// libhdf5 crashes on some of these files; the child process that looks first turns that into
// Errors.
TEST_CASE("no single-byte change of a foreign file crashes or hangs") {
  const TemporaryDirectory scratch;
  const std::string path = scratch.file("t.h5"), changed = scratch.file("changed.h5");
  {
    const Foreign f(path);
    f.add("plain", H5P_DEFAULT);
    const hid_t packed = chunked(100);
    H5Pset_deflate(packed, 1);
    f.add("packed", packed);
    H5Gclose(H5Gcreate2(f.file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }
  const std::string bytes = read_bytes(path);
  std::uint64_t random = 1;
  int errors = 0, read = 0;
  for (int i = 0; i < 1000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::string now = bytes;
    now[(random >> 20) % bytes.size()] = static_cast<char>(random >> 56);
    write_bytes(changed, now);
    try {
      const Hdf5Reader reader(changed);
      for (const std::string& name : reader.names()) {
        const Hdf5Info info = reader.info(name);
        std::vector<char> into(
            static_cast<std::size_t>(std::min<std::int64_t>(info.bytes(), 1 << 20)));
        if (info.bytes() == static_cast<std::int64_t>(into.size()))
          reader.read(name, Tensor(into.data(), info.dtype, info.shape));
      }
      ++read;
    } catch (const Error& error) {
      REQUIRE(std::string(error.what()).find(changed) != std::string::npos);
      ++errors;
    }
  }
  CHECK(errors > 50);
  CHECK(read > 50);
}

TEST_CASE("a size limit or a missing directory makes an Error, and nothing is left behind") {
  const TemporaryDirectory scratch;
  const std::vector<float> values(100000);
  const auto save = [&](const std::string& path) {
    Hdf5Writer writer;
    writer.add("x", ConstTensor(values.data(), DType::f32, {100000}));
    writer.save(path);
  };
  CHECK(in_child([&] {
          const rlimit bound{100000, 100000};
          setrlimit(RLIMIT_FSIZE, &bound);
          const std::string error = error_of([&] { save(scratch.file("t.h5")); });
          const bool clear = error.find("File too large after 100000 bytes") != std::string::npos;
          if (!clear) throw std::runtime_error(error);
        }) == 0);
  CHECK(std::filesystem::is_empty(scratch.directory()));
  CHECK(error_of([&] { save(scratch.file("none/t.h5")); }).find("No such file or directory") !=
        std::string::npos);
}

}  // namespace
}  // namespace tilefold
