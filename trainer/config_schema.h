// The keys of a config, each once: how it is called, what it may be, what it means, and how it is
// read into and written from a Config. Reading, writing, --set and --help-config all go through it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/yaml.h"
#include "trainer/config.h"

namespace tilefold {

struct ConfigKey {
  std::string section, name;
  std::string type;     // "integer", "number", "text", "true or false", ...
  std::string allowed;  // "1 or more"
  std::string meaning;
  // Returns false where the value is not allowed.
  std::function<bool(Config&, const YamlNode&)> read;
  std::function<std::string(const Config&)> write;  // as YAML

  std::string path() const { return section + "." + name; }
};

const std::vector<ConfigKey>& config_keys();
// Sections in order, with a line on each.
const std::vector<std::pair<std::string, std::string>>& config_sections();

}  // namespace tilefold
