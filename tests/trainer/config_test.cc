#include "trainer/config.h"

#include <filesystem>

#include "base/error.h"
#include "tests/catch.h"
#include "trainer/config_schema.h"

using namespace tilefold;

namespace {

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "c.yaml", overrides);
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every config of the project loads, and its resolved form gives the same config") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TILEFOLD_CONFIGS)) {
    const Config config = load_config(entry.path().string(), {});
    const std::string resolved = to_yaml(config);
    CHECK(to_yaml(parse(resolved)) == resolved);
    ++files;
  }
  CHECK(files >= 6);
}

TEST_CASE("each key is documented and survives writing and reading") {
  const std::string help = config_help();
  for (const ConfigKey& key : config_keys()) {
    CHECK(contains(help, "  " + key.name + ": "));
    CHECK_FALSE(key.meaning.empty());
  }
  const Config config = parse(
      "run: {name: 'a \"b\" \\ c', seed: 9007199254740993}\nmemory: {limit: 1.5GiB}\n"
      "attention: {window: [128, 0]}\ntrain: {lr: 0.1, min_lr: 1e-4}\n");
  CHECK(config.run.seed == 9007199254740993);
  CHECK(config.memory.limit == 1610612736);
  CHECK(parse(to_yaml(config)).run.name == "a \"b\" \\ c");
  CHECK(parse(to_yaml(config)).train.lr == 0.1);
  CHECK(config.run.out == "runs/" + config.run.name);
}

TEST_CASE("any text survives writing and reading") {
  for (const char* name : {"\r", "a\tb\nc", "\x1b[31m", "\x7f", "\xc3\xbc \xe6\x96\x87",
                           "# & * ! |", "'", "\\n", "~", "null", "[", "1e5", " padded "}) {
    Config config;
    config.run.name = name;
    CHECK(parse(to_yaml(config)).run.name == name);
  }
  CHECK(contains(error_of("run: {name: a/b}"), "c.yaml:1: run.name is 'a/b'"));
  CHECK(contains(error_of("run: {name: ''}"), "run.name"));
}

TEST_CASE("an unknown key names its line and the nearest known one") {
  CHECK(contains(error_of("model:\n  widht: 64\n"), "c.yaml:2: unknown key model.widht"));
  CHECK(contains(error_of("model:\n  widht: 64\n"), "model.width"));
  CHECK(contains(error_of("modle: {width: 64}\n"), "unknown section modle"));
  CHECK(contains(error_of("modle: {width: 64}\n"), "did you mean model;"));
  CHECK(contains(error_of("lr: 1e-3\n"), "train.lr"));           // a key without its section
  CHECK(contains(error_of("model: {lr: 1e-3}\n"), "train.lr"));  // in the wrong section
  CHECK(contains(error_of("", {"train.stepz=5"}), "train.steps"));
}

TEST_CASE("wrong values name file, line, key, value and what is allowed") {
  for (const char* value : {"many", "1.5", "0", "-3", "[1]", "{a: 1}", "", "0x10", "'5'"}) {
    const std::string error = error_of(std::string("train:\n  steps: ") + value + "\n");
    CHECK(contains(error, "c.yaml:2"));
    CHECK(contains(error, "train.steps"));
    CHECK(contains(error, "1 or more"));
  }
  CHECK(contains(error_of("model: {style: bert}"), "llama, gpt2"));
  CHECK(contains(error_of("model: {dtype: f16}"), "f32, bf16, f64"));
  for (const char* size : {"lots", "0", "-1", "1e30", "1XB", "[1]"})
    CHECK(contains(error_of(str("memory:\n  limit: ", size)),
                   str("c.yaml:2: memory.limit is ", size)));
  CHECK(contains(error_of("attention: {window: ['3', 0]}"), "attention.window"));
  for (const char* key : {"attention: {softcap: ", "model: {norm_eps: ", "model: {rope_base: ",
                          "model: {init_deviation: "})
    for (const char* value : {"1e300", "1e-300", "-1", ".nan"})  // 0 or infinite as a float32
      CHECK(contains(error_of(str(key, value, "}")), "1e-30 to 1e30"));
  CHECK(contains(error_of("attention: {window: [3, 4]}"), "attention.window is [3, 4]"));
  CHECK(contains(error_of("run: [1]"), "run is [1]"));
  CHECK(contains(error_of("just text"), "mapping"));
}

TEST_CASE("keys that contradict each other are refused, with the place of one of them") {
  CHECK(contains(error_of("train:\n  global_batch: 8\n  micro_batch: 3\n"), "c.yaml:3: "));
  CHECK(contains(error_of("train:\n  steps: 5\n"), "c.yaml:2: train.warmup_steps is 20"));
  CHECK(contains(error_of("", {"train.lr=1e-9"}), "--set train.lr=1e-9: train.min_lr"));
  CHECK(contains(error_of("model: {width: 64, heads: 3}"), "model.heads"));
  CHECK(contains(error_of("model: {width: 64, heads: 4, kv_heads: 3}"), "kv_heads"));
  CHECK(contains(error_of("model: {width: 6, heads: 2}"), "even"));
  CHECK(contains(error_of("model: {width: 1024, heads: 2}"), "1 to 256"));
  CHECK(contains(error_of("model: {dropout: 0.1}"), "model.dropout"));
  CHECK(contains(error_of("model: {dtype: f64}"), "f64"));
  CHECK(contains(error_of("train: {global_batch: 8, micro_batch: 3}"), "micro_batch"));
  CHECK(error_of("train: {global_batch: 4, micro_batch: 8}").empty());
  CHECK(contains(error_of("train: {steps: 5, warmup_steps: 6}"), "warmup_steps"));
  CHECK(contains(error_of("train: {lr: 1e-4, min_lr: 1e-3}"), "min_lr"));
  CHECK(contains(error_of("data: {kind: text}"), "data.path"));
}

TEST_CASE("--set wins over the file and says where it stands") {
  const Config config =
      parse("train: {steps: 5, warmup_steps: 1}\n",
            {"train.steps=7", "run.name=x", "data.val_path=", "attention.window=[9, 0]"});
  CHECK(config.train.steps == 7);
  CHECK(config.run.out == "runs/x");
  CHECK(config.attention.window[0] == 9);
  CHECK(contains(error_of("", {"train.steps=none"}), "--set train.steps=none"));
  CHECK(config.keys_read == 6);
  CHECK_FALSE(error_of("", {"steps=3"}).empty());
  CHECK_FALSE(error_of("", {"train.steps"}).empty());
}

TEST_CASE("--set takes a text as it stands") {
  for (const char* path : {"a #b", "*x", "&x", "a: b", "[x].txt", "{", "!t", "%y", "| z", "- a",
                           "@", "~", "a\tb", "C:\\x", "a'b", "--- x", "a=b"})
    CHECK(parse("", {str("data.path=", path)}).data.path == path);
  CHECK(parse("", {"data.path=\"a\\tb\""}).data.path == "a\tb");
  CHECK(parse("", {"data.path='a b'"}).data.path == "a b");
  CHECK(parse("", {"data.path="}).data.path.empty());
  CHECK(contains(error_of("", {"data.path=a\xfc"}),
                 "UTF-8"));  // the resolved config could not say it
}

TEST_CASE("sizes") {
  CHECK(parse_bytes("141GB", "x") == 141000000000);
  CHECK(parse_bytes("2GiB", "x") == 2147483648);
  CHECK(parse_bytes("1.5 KiB", "x") == 1536);
  CHECK(parse_bytes("77", "x") == 77);
  for (const char* text : {"", "GB", "-1GB", "0", "1e30", "2 GIB", "ten"})
    CHECK_THROWS_AS(parse_bytes(text, "x"), UsageError);
}

TEST_CASE("a missing file is named") {
  CHECK_THROWS_AS(load_config("/nonexistent/c.yaml", {}), UsageError);
  CHECK_THROWS_AS(load_config(TILEFOLD_CONFIGS, {}), UsageError);
}
