#include <algorithm>
#include <array>
#include <cstring>

#include "io/hdf5.h"
#include "io/hdf5_probe.h"
#include "io/hdf5_source.h"
#include "io/input_file.h"

namespace tilefold {
namespace {

std::uint64_t little_endian(const unsigned char* bytes, int count) {
  std::uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

// What the superblock says the file's size is; nothing when there is none at the front.
std::optional<std::int64_t> recorded_size(const std::array<unsigned char, 64>& head) {
  static constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  if (std::memcmp(head.data(), kSignature, 8) != 0) return std::nullopt;
  const int version = head[8];
  const int width = version <= 1 ? head[13] : head[9];
  if (version > 3 || width != 8) return std::nullopt;
  const int base = version == 0 ? 24 : version == 1 ? 28 : 12;
  return static_cast<std::int64_t>(little_endian(&head[static_cast<std::size_t>(base) + 16], 8));
}

// Everything that can be told without libhdf5; the file's size.
std::int64_t check_file(const std::string& path) {
  const InputFile file(path);
  std::array<unsigned char, 64> head{};
  require(file.size() >= 64, "cannot read ", path,
          ": not an HDF5 file (expected at least 64 bytes, found ", file.size(), ")");
  file.read(0, std::as_writable_bytes(std::span(head)));
  const auto recorded = recorded_size(head);
  require(recorded.has_value(), "cannot read ", path, ": not an HDF5 file (no signature)");
  require(*recorded >= 64 && *recorded <= file.size(), "cannot read ", path,
          ": cut or damaged (expected ", *recorded, " bytes, found ", file.size(), ")");
  return file.size();
}

bool is_float(hid_t type, std::size_t size) {
  const hid_t little = size == 4 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE;
  const hid_t big = size == 4 ? H5T_IEEE_F32BE : H5T_IEEE_F64BE;
  return H5Tequal(type, little) > 0 || H5Tequal(type, big) > 0;
}

hid_t memory_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::i32:
      return H5T_NATIVE_INT32;
    case DType::i64:
      return H5T_NATIVE_INT64;
    case DType::u8:
      return H5T_NATIVE_UINT8;
    case DType::u16:
    case DType::bf16:
    case DType::f16:
      return H5T_NATIVE_UINT16;
  }
  throw std::logic_error("unknown dtype");
}

DType dtype_of_set(const Hdf5Source& file, hid_t set, hid_t type, const std::string& name) {
  if (is_float(type, 4)) return DType::f32;
  if (is_float(type, 8)) return DType::f64;
  const auto integer = integer_type(type);
  if (integer && integer->size == 4 && integer->is_signed) return DType::i32;
  if (integer && integer->size == 8 && integer->is_signed) return DType::i64;
  if (integer && integer->size == 1 && !integer->is_signed) return DType::u8;
  if (integer && integer->size == 2 && !integer->is_signed) {
    if (H5Aexists(set, kDtypeAttribute) <= 0) return DType::u16;
    const auto all = file.attributes_of(set, name);
    const auto at = all.find(kDtypeAttribute);
    const auto* text = at == all.end() ? nullptr : std::get_if<std::string>(&at->second);
    if (text && *text == "bf16") return DType::bf16;
    if (text && *text == "f16") return DType::f16;
    file.check(false, name, ": attribute ", kDtypeAttribute, " is neither bf16 nor f16");
  }
  file.check(false, name, ": element type not supported (allowed: f32, f64, i32, i64, u16, u8)");
  return DType::f32;
}

}  // namespace

struct Hdf5Reader::File : Hdf5Source {};

Hdf5Reader::Hdf5Reader(const std::string& path, Hdf5Trust trust) : file_(std::make_unique<File>()) {
  const std::int64_t size = check_file(path);
  file_->path = path;
  if (trust == Hdf5Trust::foreign) {
    constexpr std::int64_t kSeconds = 2, kBytesPerSecond = 20'000'000;  // inflating is the slowest
    const auto seconds = static_cast<int>(kSeconds + size / kBytesPerSecond);
    run_in_child(path, seconds, [&] {
      file_->open();
      file_->go_through();
    });
  }
  file_->open();
}

Hdf5Reader::~Hdf5Reader() = default;
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;
Hdf5Reader& Hdf5Reader::operator=(Hdf5Reader&&) noexcept = default;

const std::string& Hdf5Reader::path() const { return file_->path; }
const std::vector<std::string>& Hdf5Reader::names() const { return file_->names; }
bool Hdf5Reader::has(std::string_view name) const {
  return std::binary_search(file_->names.begin(), file_->names.end(), name);
}

Hdf5Info Hdf5Reader::info(const std::string& name) const {
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  return {dtype_of_set(*file_, set, type, name), file_->shape_of(set, name)};
}

void Hdf5Reader::read(const std::string& name, Tensor into) const {
  expect(into.dense(), "an array is read into dense memory");
  const Hdf5Info found = info(name);
  file_->check(found.dtype == into.dtype && found.shape == into.shape, name, ": is ",
               name_of(found.dtype), " ", found.shape.text(), ", needed ", name_of(into.dtype), " ",
               into.shape.text());
  if (found.bytes() == 0) return;
  const Hdf5Id set = file_->open_set(name);
  if (H5Dread(set, memory_type(into.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, into.data) < 0)
    file_->check(false, name, ": damaged: ", hdf5_reason());
}

std::string Hdf5Reader::text(const std::string& name) const {
  const Hdf5Id set = file_->open_set(name);
  return file_->read_text(set, name);
}

Hdf5Integers Hdf5Reader::integers(const std::string& name) const {
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  const auto integer = integer_type(type);
  file_->check(integer.has_value(), name, ": not an array of integers");
  const Shape shape = file_->shape_of(set, name);
  file_->check(shape.rank == 1, name, ": has ", shape.rank, " dimensions, needed 1");
  return {integer->size, integer->is_signed, shape[0]};
}

void Hdf5Reader::read_integers(const std::string& name, std::int64_t first,
                               std::span<std::int64_t> into) const {
  const Hdf5Integers integers = this->integers(name);
  const std::int64_t size = integers.count;
  const auto count = static_cast<std::int64_t>(into.size());
  file_->check(first >= 0 && first <= size && count <= size - first, name, ": has ", size,
               " elements, needed ", first, " .. ", first + count);
  if (count == 0) return;
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id space = file_->checked(H5Dget_space(set), H5Sclose, name);
  const hsize_t start = static_cast<hsize_t>(first), length = static_cast<hsize_t>(count);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &length, nullptr);
  const Hdf5Id memory = file_->checked(H5Screate_simple(1, &length, nullptr), H5Sclose, name);
  // libhdf5 would clamp what does not fit; only an unsigned 64-bit value can, read as such.
  const bool wide = integers.size == 8 && !integers.is_signed;
  if (H5Dread(set, wide ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, memory, space, H5P_DEFAULT,
              into.data()) < 0)
    file_->check(false, name, ": damaged: ", hdf5_reason());
  for (std::size_t i = 0; wide && i < into.size(); ++i)
    file_->check(into[i] >= 0, name, ": element ", first + static_cast<std::int64_t>(i),
                 " does not fit in 63 bits");
}

std::optional<std::int64_t> Hdf5Reader::offset(const std::string& name) const {
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  const std::size_t size = H5Tget_size(type);
  const bool plain = H5Tget_precision(type) == 8 * size &&
                     (size == 1 || H5Tget_order(type) == H5Tget_order(H5T_NATIVE_INT));
  if (!plain) return std::nullopt;
  file_->shape_of(set, name);  // throws unless wholly stored
  const haddr_t at = H5Dget_offset(set);
  if (at == HADDR_UNDEF) return std::nullopt;
  return static_cast<std::int64_t>(at);
}

std::map<std::string, Hdf5Value> Hdf5Reader::attributes(const std::string& name) const {
  const bool is_group =
      std::find(file_->groups.begin(), file_->groups.end(), name) != file_->groups.end();
  file_->check(name.empty() || is_group || has(name), "no object named ", name);
  const Hdf5Id object = file_->checked(
      H5Oopen(file_->file, name.empty() ? "/" : name.c_str(), H5P_DEFAULT), H5Oclose, name);
  return file_->attributes_of(object, name);
}

}  // namespace tilefold
