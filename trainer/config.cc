#include "trainer/config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
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

void read_key(Config& config, const std::string& section, const std::string& name,
              const YamlNode& node, const std::string& at) {
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section || key.name != name) continue;
    if (!key.read(config, node))
      throw UsageError(str(at, ": ", key.path(), " is ", shown(node), "; allowed: ", key.allowed,
                           " (", key.type, ")"));
    return;
  }
  throw UsageError(str(at, ": unknown key ", section, ".", name, "; the nearest one is ",
                       nearest_key(section, name), " (tilefold --help-config lists all)"));
}

void read_tree(Config& config, const YamlNode& root, const std::string& origin) {
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
      throw UsageError(str(at, ": unknown section ", section.key,
                           key ? str("; did you mean ", key->path()) : "", "; allowed: ", names));
    }
    if (section.value.type == YamlNode::Type::null) continue;
    if (section.value.type != YamlNode::Type::mapping)
      throw UsageError(str(at, ": ", section.key, " is ", shown(section.value),
                           "; allowed: a mapping of keys (tilefold --help-config lists them)"));
    for (const YamlNode::Member& member : section.value.members)
      read_key(config, section.key, member.key, member.value, place(origin, member.line));
  }
}

// a.b=c
void read_override(Config& config, const std::string& override_text) {
  const std::size_t equals = override_text.find('='), dot = override_text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals)
    throw UsageError(str("--set ", override_text, ": allowed: SECTION.KEY=VALUE"));
  const std::string section = override_text.substr(0, dot);
  const std::string name = override_text.substr(dot + 1, equals - dot - 1);
  const YamlNode value = parse_yaml(override_text.substr(equals + 1), "--set " + override_text);
  YamlNode text = value;
  if (value.type == YamlNode::Type::null) {  // data.val_path= : the empty text
    text.type = YamlNode::Type::scalar;
    text.text.clear();
  }
  read_key(config, section, name, text, "--set " + override_text);
}

void fill_in(Config& c) {
  if (c.run.out.empty()) c.run.out = "runs/" + c.run.name;
  ModelConfig& m = c.model;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.ffn_width == 0)
    m.ffn_width = m.style == ModelStyle::gpt2 ? 4 * m.width : (8 * m.width / 3 + 63) / 64 * 64;
}

void check_model(const ModelConfig& m, const std::string& origin) {
  auto refuse_unless = [&](bool ok, const auto&... parts) {
    if (!ok) throw UsageError(str(origin, ": ", parts...));
  };
  refuse_unless(m.width % m.heads == 0, "model.width is ", m.width, " and model.heads ", m.heads,
                "; allowed: heads that divide width");
  const std::int64_t d = m.width / m.heads;
  refuse_unless(d <= 256, "model.width / model.heads, the head width, is ", d,
                "; allowed: 1 to 256");
  refuse_unless(m.heads % m.kv_heads == 0, "model.kv_heads is ", m.kv_heads, " and model.heads ",
                m.heads, "; allowed: kv_heads that divide heads");
  const bool llama = m.style == ModelStyle::llama;
  refuse_unless(!llama || d % 2 == 0, "model.width / model.heads, the head width, is ", d,
                "; rotary positions pair its columns, allowed: an even number");
  refuse_unless(!llama || m.dropout == 0, "model.dropout is ", m.dropout,
                "; model.style llama has none, allowed: 0 (or style gpt2)");
  refuse_unless(!llama || !m.bias,
                "model.bias is true; model.style llama has none, allowed: false "
                "(or style gpt2)");
  refuse_unless((m.dtype == DType::f64) == (m.residual_dtype == DType::f64), "model.dtype is ",
                name_of(m.dtype), " and model.residual_dtype ", name_of(m.residual_dtype),
                "; f64 goes with f64 only");
  refuse_unless(m.dtype != DType::f32 || m.residual_dtype == DType::f32, "model.residual_dtype is ",
                name_of(m.residual_dtype), " and model.dtype f32; allowed: f32");
}

void check(const Config& c, const std::string& origin) {
  auto refuse_unless = [&](bool ok, const auto&... parts) {
    if (!ok) throw UsageError(str(origin, ": ", parts...));
  };
  check_model(c.model, origin);
  const TrainConfig& t = c.train;
  const std::int64_t micro = std::min(t.micro_batch, t.global_batch);
  refuse_unless(t.global_batch % micro == 0, "train.global_batch is ", t.global_batch,
                " and train.micro_batch ", t.micro_batch,
                "; allowed: a micro_batch that divides global_batch");
  refuse_unless(t.warmup_steps <= t.steps, "train.warmup_steps is ", t.warmup_steps,
                " and train.steps ", t.steps, "; allowed: 0 to steps");
  refuse_unless(t.min_lr <= t.lr, "train.min_lr is ", t.min_lr, " and train.lr ", t.lr,
                "; allowed: 0 to lr");
  const bool file = c.data.kind == DataKind::text || c.data.kind == DataKind::tokens;
  refuse_unless(!file || !c.data.path.empty(), "data.path is empty; data.kind ",
                c.data.kind == DataKind::text ? "text" : "tokens",
                " needs a file: set it, or give --set data.path=FILE");
  refuse_unless(
      !c.parallel.shard_optimizer,
      "parallel.shard_optimizer is true; every rank keeps the whole optimizer state on the "
      "CPU, allowed: false");
}

std::string type_and_default(const ConfigKey& key) {
  return str(key.type, ", default ", key.write(Config{}));
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Config config;
  read_tree(config, parse_yaml(text, origin), origin);
  for (const std::string& override_text : overrides) read_override(config, override_text);
  fill_in(config);
  check(config, overrides.empty() ? origin : origin + " with --set");
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(read_text(path), path, overrides);
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

std::int64_t parse_bytes(const std::string& text, const std::string& what) {
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
  if (!value || *value <= 0 || *value * unit >= 0x1p62 || *value * unit < 1)
    throw UsageError(
        str(what, " is ", text, "; allowed: a size above 0: 24GB, 2GiB, 512MiB, bytes"));
  return static_cast<std::int64_t>(*value * unit);
}

}  // namespace tilefold
