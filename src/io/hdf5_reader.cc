#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "io/hdf5.h"
#include "io/hdf5_handle.h"

namespace tilefold {
namespace {

constexpr int kMaxDepth = 16;             // groups in groups
constexpr std::size_t kMaxObjects = 1 << 16;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 28;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;   // 64 TiB: products of sizes stay in range
constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 26;

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

// Everything that can be told without libhdf5.
void check_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0, "cannot read ", path, ": ", std::strerror(errno));
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  std::array<unsigned char, 64> head{};
  const ssize_t got = known && S_ISREG(status.st_mode) ? pread(file, head.data(), 64, 0) : 0;
  close(file);
  require(known && S_ISREG(status.st_mode), "cannot read ", path, ": not a regular file");
  const auto size = static_cast<std::int64_t>(status.st_size);
  require(got == 64, "cannot read ", path, ": not an HDF5 file (expected at least 96 bytes, found ",
          size, ")");
  const auto recorded = recorded_size(head);
  require(recorded.has_value(), "cannot read ", path, ": not an HDF5 file (no signature)");
  require(*recorded >= 64 && *recorded <= size, "cannot read ", path, ": cut or damaged (expected ",
          *recorded, " bytes, found ", size, ")");
}

std::string join(const std::string& group, const std::string& name) {
  return group.empty() ? name : group + "/" + name;
}

struct IntegerType {
  int size = 0;
  bool is_signed = false;
};

std::optional<IntegerType> integer_type(hid_t type) {
  if (H5Tget_class(type) != H5T_INTEGER) return std::nullopt;
  const auto size = H5Tget_size(type);
  if (size != 1 && size != 2 && size != 4 && size != 8) return std::nullopt;
  return IntegerType{static_cast<int>(size), H5Tget_sign(type) != H5T_SGN_NONE};
}

bool is_float(hid_t type, std::size_t size) {
  const hid_t little = size == 4 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE;
  const hid_t big = size == 4 ? H5T_IEEE_F32BE : H5T_IEEE_F64BE;
  return H5Tequal(type, little) > 0 || H5Tequal(type, big) > 0;
}

hid_t memory_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return H5T_NATIVE_FLOAT;
    case DType::f64: return H5T_NATIVE_DOUBLE;
    case DType::i32: return H5T_NATIVE_INT32;
    case DType::i64: return H5T_NATIVE_INT64;
    case DType::u8: return H5T_NATIVE_UINT8;
    case DType::u16:
    case DType::bf16:
    case DType::f16: return H5T_NATIVE_UINT16;
  }
  throw std::logic_error("unknown dtype");
}

}  // namespace

void quiet_hdf5() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

std::string hdf5_reason() {
  std::string reason = "unknown reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
        if (depth == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return reason;
}

struct Hdf5Reader::File {
  std::string path;
  Hdf5Id file;
  std::vector<std::string> names, groups;

  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    if (!ok) throw Error(str(path, ": ", parts...));
  }
  Hdf5Id checked(hid_t id, Hdf5Id::Close close, const std::string& name) const {
    if (id < 0) throw Error(str(path, ": ", name, ": damaged: ", hdf5_reason()));
    return {id, close};
  }

  void walk(hid_t group, const std::string& prefix, int depth);
  void refuse_unsafe(hid_t set, const std::string& name) const;
  Hdf5Id open_set(const std::string& name) const;
  Shape shape_of(hid_t set, const std::string& name) const;
  DType dtype_of_set(hid_t set, hid_t type, const std::string& name) const;
  std::map<std::string, Hdf5Value> attributes_of(hid_t object, const std::string& name) const;
  std::string read_string(hid_t source, bool is_attribute, const std::string& name) const;
};

// Lists the arrays below a group; hard links only, each looked at before it is followed.
void Hdf5Reader::File::walk(hid_t group, const std::string& prefix, int depth) {
  check(depth < kMaxDepth, "groups nested deeper than ", kMaxDepth, " at ", prefix);
  H5G_info_t info{};
  if (H5Gget_info(group, &info) < 0) check(false, "damaged group: ", hdf5_reason());
  check(info.nlinks <= kMaxObjects, "more than ", kMaxObjects, " objects in one group");
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto by_index = [&](char* out, std::size_t size) {
      return H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_NATIVE, i, out, size,
                                H5P_DEFAULT);
    };
    const ssize_t length = by_index(nullptr, 0);
    check(length > 0 && length < 4096, "damaged name in group ", prefix.empty() ? "/" : prefix);
    std::string name(static_cast<std::size_t>(length), '\0');
    by_index(name.data(), name.size() + 1);
    const std::string full = join(prefix, name);
    H5L_info_t link{};
    if (H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) < 0)
      check(false, full, ": damaged: ", hdf5_reason());
    check(link.type != H5L_TYPE_EXTERNAL, full, ": external link refused");
    check(link.type != H5L_TYPE_SOFT, full, ": soft link refused");
    check(link.type == H5L_TYPE_HARD, full, ": link of an unknown kind refused");
    const Hdf5Id object = checked(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose, full);
    const H5I_type_t kind = H5Iget_type(object);
    check(kind == H5I_DATASET || kind == H5I_GROUP, full, ": neither array nor group");
    check(names.size() + groups.size() < kMaxObjects, "more than ", kMaxObjects, " objects");
    if (kind == H5I_DATASET) {
      refuse_unsafe(object, full);
      names.push_back(full);
    } else {
      groups.push_back(full);
      walk(object, full, depth + 1);
    }
  }
}

void Hdf5Reader::File::refuse_unsafe(hid_t set, const std::string& name) const {
  const Hdf5Id create = checked(H5Dget_create_plist(set), H5Pclose, name);
  const H5D_layout_t layout = H5Pget_layout(create);
  check(layout != H5D_VIRTUAL, name, ": virtual data set refused");
  check(layout == H5D_CONTIGUOUS || layout == H5D_COMPACT || layout == H5D_CHUNKED, name,
        ": unknown layout refused");
  check(H5Pget_external_count(create) == 0, name, ": external storage refused");
  const int filters = H5Pget_nfilters(create);
  check(filters >= 0 && filters <= 8, name, ": damaged filter list");
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(create, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr,
                       &config);
    check(filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_SHUFFLE ||
              filter == H5Z_FILTER_FLETCHER32,
          name, ": filter ", filter, " refused (allowed: deflate, shuffle, fletcher32)");
  }
  if (layout == H5D_CHUNKED) {
    hsize_t chunk[H5S_MAX_RANK];
    const int rank = H5Pget_chunk(create, H5S_MAX_RANK, chunk);
    const Hdf5Id type = checked(H5Dget_type(set), H5Tclose, name);
    double bytes = static_cast<double>(H5Tget_size(type));
    for (int i = 0; i < rank; ++i) bytes *= static_cast<double>(chunk[i]);
    check(rank > 0 && bytes <= static_cast<double>(kMaxChunkBytes), name, ": chunks of ", bytes,
          " bytes refused (at most ", kMaxChunkBytes, ")");
  }
}

Hdf5Id Hdf5Reader::File::open_set(const std::string& name) const {
  check(std::binary_search(names.begin(), names.end(), name), "no array named ", name);
  return checked(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name);
}

// Also sees to it that all of the elements are really in the file.
Shape Hdf5Reader::File::shape_of(hid_t set, const std::string& name) const {
  const Hdf5Id space = checked(H5Dget_space(set), H5Sclose, name);
  const int rank = H5Sget_simple_extent_ndims(space);
  check(rank >= 0 && rank <= kMaxRank, name, ": has ", rank, " dimensions, at most ", kMaxRank,
        " are allowed");
  check(H5Sget_simple_extent_type(space) != H5S_NULL, name, ": has no elements");
  hsize_t dims[kMaxRank] = {};
  H5Sget_simple_extent_dims(space, dims, nullptr);
  const Hdf5Id type = checked(H5Dget_type(set), H5Tclose, name);
  const auto size = static_cast<std::int64_t>(H5Tget_size(type));
  Shape shape;
  shape.rank = rank;
  std::int64_t bytes = size;
  for (int i = 0; i < rank; ++i) {
    const hsize_t dim = dims[i];
    check(dim <= static_cast<hsize_t>(kMaxBytes), name, ": dimension ", i, " is ", dim);
    shape[i] = static_cast<std::int64_t>(dim);
    check(shape[i] == 0 || bytes <= kMaxBytes / shape[i], name, ": larger than ", kMaxBytes,
          " bytes");
    bytes *= shape[i];
  }
  H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
  const Hdf5Id create = checked(H5Dget_create_plist(set), H5Pclose, name);
  const bool chunked = H5Pget_layout(create) == H5D_CHUNKED;
  const auto stored = static_cast<std::int64_t>(H5Dget_storage_size(set));
  const bool whole = chunked ? H5Dget_space_status(set, &status) >= 0 &&
                                   status == H5D_SPACE_STATUS_ALLOCATED
                             : stored == bytes;
  check(bytes == 0 || whole, name, ": not wholly written (needs ", bytes, " bytes, has ", stored,
        ")");
  return shape;
}

DType Hdf5Reader::File::dtype_of_set(hid_t set, hid_t type, const std::string& name) const {
  if (is_float(type, 4)) return DType::f32;
  if (is_float(type, 8)) return DType::f64;
  const auto integer = integer_type(type);
  if (integer && integer->size == 4 && integer->is_signed) return DType::i32;
  if (integer && integer->size == 8 && integer->is_signed) return DType::i64;
  if (integer && integer->size == 1 && !integer->is_signed) return DType::u8;
  if (integer && integer->size == 2 && !integer->is_signed) {
    if (H5Aexists(set, kDtypeAttribute) <= 0) return DType::u16;
    const auto all = attributes_of(set, name);
    const auto at = all.find(kDtypeAttribute);
    const auto* text = at == all.end() ? nullptr : std::get_if<std::string>(&at->second);
    if (text && *text == "bf16") return DType::bf16;
    if (text && *text == "f16") return DType::f16;
    check(false, name, ": attribute ", kDtypeAttribute, " is neither bf16 nor f16");
  }
  check(false, name, ": element type not supported (allowed: f32, f64, i32, i64, u16, u8)");
  return DType::f32;
}

// A string of fixed or variable length: the value of an attribute, or of a data set of one element.
std::string Hdf5Reader::File::read_string(hid_t source, bool is_attribute,
                                          const std::string& name) const {
  const Hdf5Id type = checked(is_attribute ? H5Aget_type(source) : H5Dget_type(source), H5Tclose,
                              name);
  const auto read = [&](hid_t as, void* out) {
    return is_attribute ? H5Aread(source, as, out)
                        : H5Dread(source, as, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
  };
  if (H5Tis_variable_str(type) > 0) {
    const Hdf5Id memory = checked(H5Tcopy(type), H5Tclose, name);
    char* text = nullptr;
    if (read(memory, &text) < 0) check(false, name, ": damaged: ", hdf5_reason());
    const std::string out = text ? text : "";
    H5free_memory(text);
    return out;
  }
  const auto size = static_cast<std::int64_t>(H5Tget_size(type));
  check(size > 0 && size <= kMaxTextBytes, name, ": a text of ", size, " bytes (at most ",
        kMaxTextBytes, ")");
  std::string out(static_cast<std::size_t>(size), '\0');
  if (read(type, out.data()) < 0) check(false, name, ": damaged: ", hdf5_reason());
  const char padding = H5Tget_strpad(type) == H5T_STR_SPACEPAD ? ' ' : '\0';
  if (H5Tget_strpad(type) == H5T_STR_NULLTERM) out.resize(std::strlen(out.c_str()));
  while (!out.empty() && out.back() == padding) out.pop_back();
  return out;
}

std::map<std::string, Hdf5Value> Hdf5Reader::File::attributes_of(hid_t object,
                                                                 const std::string& name) const {
  std::map<std::string, Hdf5Value> all;
  H5O_info_t info{};
  if (H5Oget_info(object, &info) < 0) check(false, name, ": damaged: ", hdf5_reason());
  check(info.num_attrs <= 4096, name, ": more than 4096 attributes");
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    const Hdf5Id attribute = checked(
        H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose, name);
    const ssize_t length = H5Aget_name(attribute, 0, nullptr);
    check(length > 0 && length < 4096, name, ": damaged attribute name");
    std::string key(static_cast<std::size_t>(length), '\0');
    H5Aget_name(attribute, key.size() + 1, key.data());
    const std::string where = name.empty() ? "attribute " + key : name + ": attribute " + key;
    const Hdf5Id space = checked(H5Aget_space(attribute), H5Sclose, where);
    check(H5Sget_simple_extent_npoints(space) == 1, where, ": has not one value");
    const Hdf5Id type = checked(H5Aget_type(attribute), H5Tclose, where);
    check(H5Tget_size(type) <= 1 << 16, where, ": too large");
    const H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_STRING) {
      all[key] = read_string(attribute, true, where);
    } else if (kind == H5T_FLOAT) {
      double value = 0;
      if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) check(false, where, ": damaged");
      all[key] = value;
    } else if (integer_type(type)) {
      std::int64_t value = 0;
      if (H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) check(false, where, ": damaged");
      all[key] = value;
    } else if (kind == H5T_ENUM && H5Tget_size(type) == 1) {  // how h5py keeps truth values
      std::int8_t value = 0;
      if (H5Aread(attribute, type, &value) < 0) check(false, where, ": damaged");
      all[key] = std::int64_t{value};
    } else {
      check(false, where, ": neither number nor string");
    }
  }
  return all;
}

Hdf5Reader::Hdf5Reader(const std::string& path) : file_(std::make_unique<File>()) {
  quiet_hdf5();
  check_file(path);
  file_->path = path;
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Read-only opening needs no lock, and network file systems often have none.
  H5Pset_file_locking(access, false, true);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  require(file >= 0, "cannot read ", path, ": damaged HDF5 file: ", hdf5_reason());
  file_->file = {file, H5Fclose};
  const Hdf5Id root = file_->checked(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose, "/");
  file_->walk(root, "", 0);
  std::sort(file_->names.begin(), file_->names.end());
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
  return {file_->dtype_of_set(set, type, name), file_->shape_of(set, name)};
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
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  file_->check(H5Tget_class(type) == H5T_STRING, name, ": not a text");
  file_->check(file_->shape_of(set, name).numel() == 1, name, ": not one text");
  return file_->read_string(set, false, name);
}

std::int64_t Hdf5Reader::integer_count(const std::string& name) const {
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  file_->check(integer_type(type).has_value(), name, ": not an array of integers");
  const Shape shape = file_->shape_of(set, name);
  file_->check(shape.rank == 1, name, ": has ", shape.rank, " dimensions, needed 1");
  return shape[0];
}

void Hdf5Reader::read_integers(const std::string& name, std::int64_t first,
                               std::span<std::int64_t> into) const {
  const std::int64_t size = integer_count(name);
  const auto count = static_cast<std::int64_t>(into.size());
  file_->check(first >= 0 && first <= size && count <= size - first, name, ": has ", size,
               " elements, needed ", first, " .. ", first + count);
  if (count == 0) return;
  const Hdf5Id set = file_->open_set(name);
  const Hdf5Id space = file_->checked(H5Dget_space(set), H5Sclose, name);
  const hsize_t start = static_cast<hsize_t>(first), length = static_cast<hsize_t>(count);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &length, nullptr);
  const Hdf5Id memory = file_->checked(H5Screate_simple(1, &length, nullptr), H5Sclose, name);
  const Hdf5Id type = file_->checked(H5Dget_type(set), H5Tclose, name);
  // libhdf5 would clamp what does not fit; only an unsigned 64-bit value can, read as such.
  const IntegerType integer = *integer_type(type);
  const bool wide = integer.size == 8 && !integer.is_signed;
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
  if (H5Tget_order(type) != H5Tget_order(H5T_NATIVE_INT) && H5Tget_size(type) > 1)
    return std::nullopt;
  file_->shape_of(set, name);  // throws unless wholly stored
  const haddr_t at = H5Dget_offset(set);
  if (at == HADDR_UNDEF) return std::nullopt;
  return static_cast<std::int64_t>(at);
}

std::map<std::string, Hdf5Value> Hdf5Reader::attributes(const std::string& name) const {
  const bool is_group = std::find(file_->groups.begin(), file_->groups.end(), name) !=
                        file_->groups.end();
  file_->check(name.empty() || is_group || has(name), "no object named ", name);
  const Hdf5Id object = file_->checked(
      H5Oopen(file_->file, name.empty() ? "/" : name.c_str(), H5P_DEFAULT), H5Oclose, name);
  return file_->attributes_of(object, name);
}

}  // namespace tilefold
