#include "io/hdf5_source.h"

#include <algorithm>
#include <cstring>

namespace tilefold {
namespace {

constexpr int kMaxDepth = 16;  // groups in groups
constexpr std::size_t kMaxObjects = 1 << 16;
constexpr std::size_t kMaxAttributes = 4096;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 28;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;  // products of sizes stay in range
constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 26;

struct Link {
  std::string name;
  H5L_type_t type = H5L_TYPE_ERROR;
};

// At most kMaxObjects + 1; nothing when the group is damaged.
std::optional<std::vector<Link>> links_of(hid_t group) {
  std::vector<Link> links;
  hsize_t from = 0;
  const herr_t status = H5Literate(
      group, H5_INDEX_NAME, H5_ITER_NATIVE, &from,
      [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
        auto& all = *static_cast<std::vector<Link>*>(out);
        all.push_back({name, info->type});
        return all.size() > kMaxObjects;
      },
      &links);
  if (status < 0) return std::nullopt;
  return links;
}

// At most kMaxAttributes + 1; nothing when the object is damaged.
std::optional<std::vector<std::string>> attribute_names(hid_t object) {
  std::vector<std::string> names;
  hsize_t from = 0;
  const herr_t status = H5Aiterate2(
      object, H5_INDEX_NAME, H5_ITER_NATIVE, &from,
      [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
        auto& all = *static_cast<std::vector<std::string>*>(out);
        all.push_back(name);
        return all.size() > kMaxAttributes;
      },
      &names);
  if (status < 0) return std::nullopt;
  return names;
}

std::string join(const std::string& group, const std::string& name) {
  return group.empty() ? name : group + "/" + name;
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

std::optional<Hdf5IntegerType> integer_type(hid_t type) {
  if (H5Tget_class(type) != H5T_INTEGER) return std::nullopt;
  const auto size = H5Tget_size(type);
  if (size != 1 && size != 2 && size != 4 && size != 8) return std::nullopt;
  return Hdf5IntegerType{static_cast<int>(size), H5Tget_sign(type) != H5T_SGN_NONE};
}

void Hdf5Source::open() {
  quiet_hdf5();
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Read-only opening needs no lock, and network file systems often have none.
  H5Pset_file_locking(access, false, true);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  require(id >= 0, "cannot read ", path, ": damaged HDF5 file: ", hdf5_reason());
  file = {id, H5Fclose};
  const Hdf5Id root = checked(H5Gopen2(id, "/", H5P_DEFAULT), H5Gclose, "/");
  walk(root, "", 0);
  std::sort(names.begin(), names.end());
}

// Lists the arrays below a group; hard links only, each looked at before it is followed.
void Hdf5Source::walk(hid_t group, const std::string& prefix, int depth) {
  check(depth < kMaxDepth, "groups nested deeper than ", kMaxDepth, " at ", prefix);
  const auto links = links_of(group);
  if (!links) check(false, "group /", prefix, ": damaged: ", hdf5_reason());
  check(names.size() + groups.size() + links->size() <= kMaxObjects, "more than ", kMaxObjects,
        " objects");
  for (const Link& link : *links) {
    const std::string full = join(prefix, link.name);
    // A name is one step; libhdf5 would take a slash for several.
    check(!link.name.empty() && link.name != "." && link.name.find('/') == std::string::npos, full,
          ": damaged name");
    check(link.type != H5L_TYPE_EXTERNAL, full, ": external link refused");
    check(link.type != H5L_TYPE_SOFT, full, ": soft link refused");
    check(link.type == H5L_TYPE_HARD, full, ": link of an unknown kind refused");
    const Hdf5Id object = checked(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), H5Oclose, full);
    const H5I_type_t kind = H5Iget_type(object);
    check(kind == H5I_DATASET || kind == H5I_GROUP, full, ": neither array nor group");
    if (kind == H5I_DATASET) {
      refuse_unsafe(object, full);
      names.push_back(full);
    } else {
      groups.push_back(full);
      walk(object, full, depth + 1);
    }
  }
}

void Hdf5Source::refuse_unsafe(hid_t set, const std::string& name) const {
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
    const H5Z_filter_t filter = H5Pget_filter2(create, static_cast<unsigned>(i), &flags, &values,
                                               nullptr, 0, nullptr, &config);
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

Hdf5Id Hdf5Source::open_set(const std::string& name) const {
  if (!std::binary_search(names.begin(), names.end(), name)) {
    std::string all;
    for (std::size_t i = 0; i < names.size() && i < 8; ++i) all += (i ? ", " : "") + names[i];
    check(false, "no array named ", name, " (it has: ", all, names.size() > 8 ? ", ...)" : ")");
  }
  return checked(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name);
}

// Also sees to it that all of the elements are really in the file.
Shape Hdf5Source::shape_of(hid_t set, const std::string& name) const {
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
  if (H5Tget_class(type) != H5T_STRING)
    check(whole(set, bytes), name, ": not wholly written (needs ", bytes, " bytes, has ",
          H5Dget_storage_size(set), ")");
  return shape;
}

// Whether all of the elements are in the file; what is missing would be read as zeros.
bool Hdf5Source::whole(hid_t set, std::int64_t bytes) const {
  const Hdf5Id create = checked(H5Dget_create_plist(set), H5Pclose, "layout");
  if (bytes == 0) return true;
  if (H5Pget_layout(create) != H5D_CHUNKED)
    return H5Dget_storage_size(set) == static_cast<hsize_t>(bytes);
  const Hdf5Id space = checked(H5Dget_space(set), H5Sclose, "layout");
  hsize_t dims[kMaxRank], chunk[kMaxRank], needed = 1, stored = 0;
  const int rank = H5Sget_simple_extent_dims(space, dims, nullptr);
  if (rank < 1 || H5Pget_chunk(create, kMaxRank, chunk) != rank) return false;
  for (int i = 0; i < rank; ++i) needed *= (dims[i] + chunk[i] - 1) / chunk[i];
  return H5Dget_num_chunks(set, space, &stored) >= 0 && stored == needed;
}

// Reads a filtered or chunked array in pieces, to nowhere.
void Hdf5Source::read_through(hid_t set, const std::string& name) const {
  constexpr std::int64_t kPiece = 1 << 24;  // bytes
  const Hdf5Id create = checked(H5Dget_create_plist(set), H5Pclose, name);
  const Hdf5Id type = checked(H5Dget_type(set), H5Tclose, name);
  const Shape shape = shape_of(set, name);
  const H5T_class_t kind = H5Tget_class(type);
  if (H5Pget_layout(create) != H5D_CHUNKED || shape.numel() == 0) return;
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) return;  // no caller can read it
  const std::int64_t row = shape.numel() / shape[0] * static_cast<std::int64_t>(H5Tget_size(type));
  const std::int64_t step = std::clamp<std::int64_t>(kPiece / row, 1, shape[0]);
  const Hdf5Id space = checked(H5Dget_space(set), H5Sclose, name);
  std::vector<char> piece(static_cast<std::size_t>(step * row));
  hsize_t start[kMaxRank] = {}, count[kMaxRank] = {};
  for (int i = 0; i < shape.rank; ++i) count[i] = static_cast<hsize_t>(shape[i]);
  for (std::int64_t first = 0; first < shape[0]; first += step) {
    start[0] = static_cast<hsize_t>(first);
    count[0] = static_cast<hsize_t>(std::min(step, shape[0] - first));
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
    const Hdf5Id memory = checked(H5Screate_simple(shape.rank, count, nullptr), H5Sclose, name);
    if (H5Dread(set, type, memory, space, H5P_DEFAULT, piece.data()) < 0)
      check(false, name, ": damaged: ", hdf5_reason());
  }
}

// Everything that a caller may do, so that a crash happens here, in a child process. What is merely
// wrong stays for the caller to meet if he asks for it.
void Hdf5Source::go_through() const {
  const auto attempt = [](auto&& look) {
    try {
      look();
    } catch (const Error&) {
    }
  };
  for (const std::string& name : names) {
    const Hdf5Id set = open_set(name);
    attempt([&] { attributes_of(set, name); });
    attempt([&] { read_through(set, name); });
    attempt([&] { read_text(set, name); });
  }
  for (const std::string& name : groups)
    attempt([&] {
      attributes_of(checked(H5Oopen(file, name.c_str(), H5P_DEFAULT), H5Oclose, name), name);
    });
  attempt([&] { attributes_of(file, ""); });
}

std::string Hdf5Source::read_text(hid_t set, const std::string& name) const {
  const Hdf5Id type = checked(H5Dget_type(set), H5Tclose, name);
  check(H5Tget_class(type) == H5T_STRING, name, ": not a text");
  check(shape_of(set, name).numel() == 1, name, ": not one text");
  return read_string(set, false, name);
}

// A string of fixed or variable length: the value of an attribute, or of a data set of one element.
std::string Hdf5Source::read_string(hid_t source, bool is_attribute,
                                    const std::string& name) const {
  const Hdf5Id type =
      checked(is_attribute ? H5Aget_type(source) : H5Dget_type(source), H5Tclose, name);
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

std::map<std::string, Hdf5Value> Hdf5Source::attributes_of(hid_t object,
                                                           const std::string& name) const {
  std::map<std::string, Hdf5Value> all;
  const auto keys = attribute_names(object);
  if (!keys) check(false, name, ": damaged attributes: ", hdf5_reason());
  check(keys->size() <= kMaxAttributes, name, ": more than ", kMaxAttributes, " attributes");
  for (const std::string& key : *keys) {
    const std::string where = name.empty() ? "attribute " + key : name + ": attribute " + key;
    const Hdf5Id attribute = checked(H5Aopen(object, key.c_str(), H5P_DEFAULT), H5Aclose, where);
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

}  // namespace tilefold
