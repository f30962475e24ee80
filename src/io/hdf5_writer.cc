// How a file comes about: libhdf5 lays it out in memory (core driver, nothing behind it) with every
// array's space allocated and none written. Metadata goes into one block at the front, so
//
//   [ superblock, groups, headers, attributes ][ array 0 ][ array 1 ] ... end
//     from libhdf5's memory                      from the caller's
//
// Default library bounds, so that HDF5 1.8 and later read it.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "io/atomic_file.h"
#include "io/hdf5.h"
#include "io/hdf5_handle.h"

namespace tilefold {
namespace {

struct Item {
  std::string name;
  ConstTensor array;
  std::string text;
  bool is_text = false;
  std::map<std::string, Hdf5Value> attributes;

  std::span<const std::byte> bytes() const {
    if (is_text) return std::as_bytes(std::span(text));
    return {static_cast<const std::byte*>(array.data), static_cast<std::size_t>(array.bytes())};
  }
};

void check(bool ok, const std::string& what) {
  if (!ok) throw Error(str("cannot lay out HDF5 file: ", what, ": ", hdf5_reason()));
}

Hdf5Id checked(hid_t id, Hdf5Id::Close close, const std::string& what) {
  check(id >= 0, what);
  return {id, close};
}

hid_t file_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::u8:
      return H5T_STD_U8LE;
    case DType::u16:
    case DType::bf16:
    case DType::f16:
      return H5T_STD_U16LE;
  }
  throw std::logic_error("unknown dtype");
}

// Of any length, which is what h5py gives back as text; its characters lie in the file's heap.
Hdf5Id text_type() {
  Hdf5Id type = checked(H5Tcopy(H5T_C_S1), H5Tclose, "string type");
  check(H5Tset_size(type, H5T_VARIABLE) >= 0, "string length");
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

Hdf5Id string_type(std::size_t length) {
  Hdf5Id type = checked(H5Tcopy(H5T_C_S1), H5Tclose, "string type");
  check(H5Tset_size(type, std::max<std::size_t>(length, 1)) >= 0, "string length");
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

// Texts of the root go to the heap, which then lies before all arrays; those of arrays must not,
// for a heap that grows between two arrays would not lie in the metadata block.
enum class Texts { in_heap, in_header };

void write_attribute(hid_t object, const std::string& name, const Hdf5Value& value, Texts texts) {
  const Hdf5Id space = checked(H5Screate(H5S_SCALAR), H5Sclose, name);
  Hdf5Id type;
  const void* data = nullptr;
  const char* characters = nullptr;
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    type = checked(H5Tcopy(H5T_STD_I64LE), H5Tclose, name);
    data = number;
  } else if (const auto* real = std::get_if<double>(&value)) {
    type = checked(H5Tcopy(H5T_IEEE_F64LE), H5Tclose, name);
    data = real;
  } else if (texts == Texts::in_heap) {
    type = text_type();
    characters = std::get<std::string>(value).c_str();
    data = &characters;
  } else {
    const std::string& text = std::get<std::string>(value);
    type = string_type(text.size());
    data = text.data();  // an empty string is one zero byte, its terminator
  }
  const Hdf5Id attribute = checked(
      H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  check(H5Awrite(attribute, type, data) >= 0, name);
}

// Room for all metadata: what an object, its links and its attributes take, twice over.
std::size_t metadata_bytes(const std::vector<Item>& items, const Item& root) {
  constexpr std::size_t kBase = 16384, kObject = 2048, kAttribute = 512;
  std::size_t bytes = kBase;
  const auto add = [&](const Item& item) {
    const auto groups = std::count(item.name.begin(), item.name.end(), '/');
    bytes += kObject * (2 + static_cast<std::size_t>(groups)) + 4 * item.name.size();
    for (const auto& [name, value] : item.attributes) {
      bytes += kAttribute + 2 * name.size();
      if (const auto* text = std::get_if<std::string>(&value)) bytes += 2 * text->size();
    }
  };
  add(root);
  for (const Item& item : items) add(item);
  return bytes;
}

haddr_t lay_out(hid_t file, const Item& item) {
  Hdf5Id type, space;
  if (item.is_text) {
    type = string_type(item.text.size());
    space = checked(H5Screate(H5S_SCALAR), H5Sclose, item.name);
  } else {
    type = checked(H5Tcopy(file_type(item.array.dtype)), H5Tclose, item.name);
    const Shape& shape = item.array.shape;
    hsize_t dims[kMaxRank];
    for (int i = 0; i < shape.rank; ++i) dims[i] = static_cast<hsize_t>(shape[i]);
    space = shape.rank == 0
                ? checked(H5Screate(H5S_SCALAR), H5Sclose, item.name)
                : checked(H5Screate_simple(shape.rank, dims, nullptr), H5Sclose, item.name);
  }
  const Hdf5Id links = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, item.name);
  H5Pset_create_intermediate_group(links, 1);
  const Hdf5Id create = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, item.name);
  H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
  const Hdf5Id set =
      checked(H5Dcreate2(file, item.name.c_str(), type, space, links, create, H5P_DEFAULT),
              H5Dclose, item.name);
  for (const auto& [name, value] : item.attributes)
    write_attribute(set, name, value, Texts::in_header);
  return H5Dget_offset(set);
}

}  // namespace

struct Hdf5Writer::Contents {
  Item root;
  std::vector<Item> items;

  Item& find(const std::string& name) {
    if (name.empty()) return root;
    const auto at = std::find_if(items.begin(), items.end(),
                                 [&](const Item& item) { return item.name == name; });
    expect(at != items.end(), "attribute of an array that was not added");
    return *at;
  }
  void add(Item item) {
    const bool is_new = std::none_of(items.begin(), items.end(),
                                     [&](const Item& other) { return other.name == item.name; });
    expect(is_new && !item.name.empty(), "an array's name is new and not empty");
    items.push_back(std::move(item));
  }
};

Hdf5Writer::Hdf5Writer() : contents_(std::make_unique<Contents>()) {}
Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::add(const std::string& name, ConstTensor array) {
  expect(array.dense(), "an array to write is dense");
  Item item{name, array, {}, false, {}};
  if (array.dtype == DType::bf16 || array.dtype == DType::f16)
    item.attributes[kDtypeAttribute] = std::string(name_of(array.dtype));
  contents_->add(std::move(item));
}

void Hdf5Writer::add_text(const std::string& name, std::string text) {
  if (text.empty()) text.push_back('\0');  // a string has at least one byte: its padding
  contents_->add({name, {}, std::move(text), true, {}});
}

void Hdf5Writer::set(const std::string& name, const std::string& attribute, Hdf5Value value) {
  constexpr std::size_t kLongest = 60000;  // an attribute lives in a header of at most 64 KiB
  const auto* text = std::get_if<std::string>(&value);
  expect(!text || text->size() <= kLongest, "a long text is added with add_text");
  contents_->find(name).attributes[attribute] = std::move(value);
}

void Hdf5Writer::hash_arrays(const std::string& attribute,
                             FunctionRef<std::int64_t(std::span<const std::byte>)> hash) {
  for (Item& item : contents_->items)
    if (!item.is_text) item.attributes[attribute] = hash(item.bytes());
}

void Hdf5Writer::write(FunctionRef<void(std::span<const std::byte>)> sink) const {
  quiet_hdf5();
  const std::vector<Item>& items = contents_->items;
  const std::size_t metadata = metadata_bytes(items, contents_->root);
  const Hdf5Id access = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file access");
  // Memory comes in whole increments, so the first write makes all of the metadata block valid.
  check(H5Pset_fapl_core(access, 2 * metadata, false) >= 0, "core driver");
  H5Pset_meta_block_size(access, metadata);
  H5Pset_small_data_block_size(access, 0);
  const Hdf5Id file =
      checked(H5Fcreate("tilefold.h5", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose, "file");
  for (const auto& [name, value] : contents_->root.attributes)
    write_attribute(file, name, value, Texts::in_heap);

  std::vector<std::pair<haddr_t, const Item*>> arrays;
  for (const Item& item : items) {
    const haddr_t offset = lay_out(file, item);
    if (item.bytes().empty()) continue;
    check(offset != HADDR_UNDEF, item.name);
    arrays.emplace_back(offset, &item);
  }
  std::sort(arrays.begin(), arrays.end());
  check(H5Fflush(file, H5F_SCOPE_LOCAL) >= 0, "flush");
  const ssize_t size = H5Fget_file_image(file, nullptr, 0);
  check(size > 0, "size");
  const haddr_t end = static_cast<haddr_t>(size);
  const haddr_t front = arrays.empty() ? end : arrays.front().first;
  const haddr_t data = std::accumulate(
      arrays.begin(), arrays.end(), haddr_t{0},
      [](haddr_t sum, const auto& array) { return sum + array.second->bytes().size(); });
  expect(front + data == end && front <= 2 * metadata, "HDF5 metadata outgrew its block");

  void* memory = nullptr;
  check(H5Fget_vfd_handle(file, access, &memory) >= 0, "memory");
  sink({*static_cast<std::byte**>(memory), static_cast<std::size_t>(front)});
  for (const auto& [offset, item] : arrays) sink(item->bytes());
}

void Hdf5Writer::save(const std::string& path) const {
  AtomicFile file(path);
  write([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

}  // namespace tilefold
