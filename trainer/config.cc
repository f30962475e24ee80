#include "trainer/config.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "io/yaml.h"
#include "trainer/config_schema.h"

namespace tilefold {
namespace {

// Levenshtein's distance: inserts, deletes and replacements from a to b.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest_key(const std::string& section, const std::string& name) {
  const ConfigKey* best = nullptr;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const ConfigKey& key : config_keys()) {
    // A misspelt name in its own section beats the same name elsewhere by nothing but one letter.
    const std::size_t d = 4 * distance(name, key.name) + distance(section, key.section);
    if (d < least) least = d, best = &key;
  }
  return best->path();
}

std::string shown(const YamlNode& node) {
  switch (node.type) {
    case YamlNode::Type::null:
      return "nothing";
    case YamlNode::Type::scalar:
      return node.text;
    case YamlNode::Type::mapping:
      return "a mapping";
    case YamlNode::Type::sequence:
      break;
  }
  std::string out = "[";
  for (const YamlNode& item : node.items) out += (out.size() > 1 ? ", " : "") + shown(item);
  return out + "]";
}

std::string place(const std::string& origin, int line) {
  return line > 0 ? str(origin, ":", line) : origin;
}

// A config that is being read, and where each key that was given stands.
struct Reading {
  Config config;
  std::map<std::string, std::string> places;  // "train.lr" -> "c.yaml:7" or "--set train.lr=1"
};

const ConfigKey& find_key(const std::string& section, const std::string& name,
                          const std::string& at) {
  for (const ConfigKey& key : config_keys())
    if (key.section == section && key.name == name) return key;
  throw UsageError(str(at, ": unknown key ", section, ".", name, "; the nearest one is ",
                       nearest_key(section, name), " (tilefold --help-config lists all)"));
}

void read_key(Reading& to, const ConfigKey& key, const YamlNode& node, const std::string& at) {
  if (!key.read(to.config, node))
    throw UsageError(str(at, ": ", key.path(), " is ", shown(node), "; allowed: ", key.allowed,
                         " (", key.type, ")"));
  to.places[key.path()] = at;
  ++to.config.keys_read;
}

std::string nearest_section(const std::string& name) {
  const auto& known = config_sections();
  return std::min_element(known.begin(), known.end(),
                          [&](const auto& a, const auto& b) {
                            return distance(name, a.first) < distance(name, b.first);
                          })
      ->first;
}

void read_tree(Reading& to, const YamlNode& root, const std::string& origin) {
  if (root.type == YamlNode::Type::null) return;  // an empty file: all defaults
  if (root.type != YamlNode::Type::mapping)
    throw UsageError(str(place(origin, root.line),
                         ": a config is a mapping of sections, run: ... "
                         "model: ...; found ",
                         shown(root)));
  for (const YamlNode::Member& section : root.members) {
    const std::string at = place(origin, section.line);
    const auto& known = config_sections();
    if (std::none_of(known.begin(), known.end(),
                     [&](const auto& s) { return s.first == section.key; })) {
      std::string names;
      for (const auto& s : known) names += (names.empty() ? "" : ", ") + s.first;
      const ConfigKey* key = nullptr;
      for (const ConfigKey& k : config_keys())
        if (k.name == section.key) key = &k;
      throw UsageError(str(at, ": unknown section ", section.key, "; did you mean ",
                           key ? key->path() : nearest_section(section.key), "; allowed: ", names));
    }
    if (section.value.type == YamlNode::Type::null) continue;
    if (section.value.type != YamlNode::Type::mapping)
      throw UsageError(str(at, ": ", section.key, " is ", shown(section.value),
                           "; allowed: a mapping of keys (tilefold --help-config lists them)"));
    for (const YamlNode::Member& member : section.value.members) {
      const std::string there = place(origin, member.line);
      read_key(to, find_key(section.key, member.key, there), member.value, there);
    }
  }
}

// a.b=c
void read_override(Reading& to, const std::string& override_text) {
  const std::string at = "--set " + override_text;
  const std::size_t equals = override_text.find('='), dot = override_text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals)
    throw UsageError(at + ": allowed: SECTION.KEY=VALUE");
  const ConfigKey& key =
      find_key(override_text.substr(0, dot), override_text.substr(dot + 1, equals - dot - 1), at);
  const std::string value = override_text.substr(equals + 1);
  for (std::size_t i = 0; i < value.size();) {
    const std::size_t bytes = utf8_character(std::string_view(value).substr(i)).bytes;
    if (bytes == 0) throw UsageError(str(at, ": byte ", i, " of the value; allowed: UTF-8"));
    i += bytes;
  }
  YamlNode node;
  // A text stands for itself, '#', ':' and brackets too, unless it is quoted.
  const bool as_it_is = key.type == "text" && !value.starts_with('"') && !value.starts_with('\'');
  if (!as_it_is) node = parse_yaml(value, at);
  if (as_it_is || node.type == YamlNode::Type::null) {  // train.steps= : an empty text
    node.type = YamlNode::Type::scalar;
    node.text = as_it_is ? value : "";
  }
  read_key(to, key, node, at);
}

void fill_in(Config& c) {
  if (c.run.out.empty()) c.run.out = "runs/" + c.run.name;
  ModelConfig& m = c.model;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.ffn_width == 0)
    m.ffn_width = m.style == ModelStyle::gpt2 ? 4 * m.width : (8 * m.width / 3 + 63) / 64 * 64;
}

// What no key alone can be blamed for. Messages begin with the first key that was given.
class Checks {
 public:
  Checks(const Reading& reading, std::string origin)
      : reading_(reading), origin_(std::move(origin)) {}

  void model() const;
  void others() const;

 private:
  template <class... Parts>
  void refuse_unless(bool ok, std::initializer_list<const char*> keys,
                     const Parts&... parts) const {
    if (ok) return;
    for (const char* key : keys)
      if (const auto at = reading_.places.find(key); at != reading_.places.end())
        throw UsageError(str(at->second, ": ", parts...));
    throw UsageError(str(origin_, ": ", parts...));
  }

  const Reading& reading_;
  std::string origin_;
};

void Checks::model() const {
  const ModelConfig& m = reading_.config.model;
  refuse_unless(m.width % m.heads == 0, {"model.heads", "model.width"}, "model.width is ", m.width,
                " and model.heads ", m.heads, "; allowed: heads that divide width");
  const std::int64_t d = m.width / m.heads;
  refuse_unless(d <= 256, {"model.heads", "model.width"},
                "model.width / model.heads, the head width, is ", d, "; allowed: 1 to 256");
  refuse_unless(m.heads % m.kv_heads == 0, {"model.kv_heads", "model.heads"}, "model.kv_heads is ",
                m.kv_heads, " and model.heads ", m.heads, "; allowed: kv_heads that divide heads");
  const bool llama = m.style == ModelStyle::llama;
  refuse_unless(!llama || d % 2 == 0, {"model.heads", "model.width"},
                "model.width / model.heads, the head width, is ", d,
                "; rotary positions pair its columns, allowed: an even number");
  refuse_unless(!llama || m.dropout == 0, {"model.dropout"}, "model.dropout is ", m.dropout,
                "; model.style llama has none, allowed: 0 (or style gpt2)");
  refuse_unless(!llama || !m.bias, {"model.bias"},
                "model.bias is true; model.style llama has none, allowed: false (or style gpt2)");
  refuse_unless((m.dtype == DType::f64) == (m.residual_dtype == DType::f64),
                {"model.dtype", "model.residual_dtype"}, "model.dtype is ", name_of(m.dtype),
                " and model.residual_dtype ", name_of(m.residual_dtype),
                "; f64 goes with f64 only");
  refuse_unless(m.dtype != DType::f32 || m.residual_dtype == DType::f32, {"model.residual_dtype"},
                "model.residual_dtype is ", name_of(m.residual_dtype),
                " and model.dtype f32; allowed: f32");
}

void Checks::others() const {
  const Config& c = reading_.config;
  const TrainConfig& t = c.train;
  refuse_unless(!c.run.name.empty() && c.run.name.find('/') == std::string::npos, {"run.name"},
                "run.name is '", c.run.name,
                "'; allowed: a name without slashes (run.out takes a directory)");
  const std::int64_t micro = std::min(t.micro_batch, t.global_batch);
  refuse_unless(t.global_batch % micro == 0, {"train.micro_batch", "train.global_batch"},
                "train.global_batch is ", t.global_batch, " and train.micro_batch ", t.micro_batch,
                "; allowed: a micro_batch that divides global_batch");
  refuse_unless(t.warmup_steps <= t.steps, {"train.warmup_steps", "train.steps"},
                "train.warmup_steps is ", t.warmup_steps, " and train.steps ", t.steps,
                "; allowed: 0 to steps; with fewer steps give fewer warmup_steps too");
  refuse_unless(t.min_lr <= t.lr, {"train.min_lr", "train.lr"}, "train.min_lr is ", t.min_lr,
                " and train.lr ", t.lr, "; allowed: 0 to lr");
  const bool file = c.data.kind == DataKind::text || c.data.kind == DataKind::tokens;
  refuse_unless(!file || !c.data.path.empty(), {"data.path", "data.kind"},
                "data.path is empty; data.kind ", c.data.kind == DataKind::text ? "text" : "tokens",
                " needs a file: set it, or give --set data.path=FILE");
}

std::string type_and_default(const ConfigKey& key) {
  return str(key.type, ", default ", key.write(Config{}));
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Reading reading;
  read_tree(reading, parse_yaml(text, origin), origin);
  for (const std::string& override_text : overrides) read_override(reading, override_text);
  fill_in(reading.config);
  const Checks checks(reading, origin);
  checks.model();
  checks.others();
  return reading.config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(read_text(path), path, overrides);
}

std::string keys_read_text(const std::string& path, const Config& config) {
  return str(path, ": ", config.keys_read, config.keys_read == 1 ? " key" : " keys",
             " read, those of --set among them\n");
}

std::string to_yaml(const Config& config) {
  std::string out, section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) out += (section = key.section) + ":\n";
    out += "  " + key.name + ": " + key.write(config) + "\n";
  }
  return out;
}

std::string config_help() {
  std::string out;
  for (const auto& [section, about] : config_sections()) {
    out += str(out.empty() ? "" : "\n", section, ":  # ", about, "\n");
    for (const ConfigKey& key : config_keys()) {
      if (key.section != section) continue;
      out += str("  ", key.name, ": ", type_and_default(key), "; allowed: ", key.allowed,
                 "\n      ", key.meaning, "\n");
    }
  }
  return out + "\nAny key can be given on the command line: --set model.context=4096\n";
}

std::optional<std::int64_t> parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  static constexpr std::array<Unit, 10> kUnits{{{"KiB", 0x1p10},
                                                {"MiB", 0x1p20},
                                                {"GiB", 0x1p30},
                                                {"TiB", 0x1p40},
                                                {"KB", 1e3},
                                                {"kB", 1e3},
                                                {"MB", 1e6},
                                                {"GB", 1e9},
                                                {"TB", 1e12},
                                                {"B", 1}}};
  std::string digits = text;
  double unit = 1;
  for (const Unit& u : kUnits) {
    if (!digits.ends_with(u.name)) continue;
    digits.resize(digits.size() - std::string(u.name).size());
    while (!digits.empty() && digits.back() == ' ') digits.pop_back();
    unit = u.bytes;
    break;
  }
  const auto value = parse_number(digits);
  if (!value || *value <= 0 || *value * unit >= 0x1p62 || *value * unit < 1) return {};
  return static_cast<std::int64_t>(*value * unit);
}

std::int64_t parse_bytes(const std::string& text, const std::string& what) {
  if (const auto bytes = parse_size(text)) return *bytes;
  throw UsageError(str(what, " is ", text, "; allowed: a size above 0: 24GB, 2GiB, 512MiB, bytes"));
}

}  // namespace tilefold
