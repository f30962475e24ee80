// From files and settings to a dataset, and the one line that says what is wrong.
#include "tests/catch.h"
#include "tests/trainer/data_support.h"
#include "tests/trainer/files.h"

namespace tilefold {
namespace {

Config text_config(const std::string& path) {
  Config config;
  config.data.kind = DataKind::text;
  config.data.path = path;
  config.model.context = 8;
  config.train.global_batch = 2;
  return config;
}

Config tokens_config(const std::string& path) {
  Config config = text_config(path);
  config.data.kind = DataKind::tokens;
  return config;
}

std::string as_uint16(const std::vector<int>& ids) {
  std::string bytes;
  for (const int id : ids) {
    bytes.push_back(static_cast<char>(id & 255));
    bytes.push_back(static_cast<char>(id >> 8));
  }
  return bytes;
}

std::vector<int> ramp(int count, int modulus) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i % modulus);
  return ids;
}

// Every (token, target) of the validation split, in order.
std::vector<std::int32_t> validation_targets(const Dataset& data) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < data.validation_samples(); ++i)
    for (const std::int32_t target : Filled(data, Split::validation, i).targets)
      if (target >= 0) targets.push_back(target);
  return targets;
}

TEST_CASE("a text's bytes: the tail validates") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.txt");
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(100 + i));  // not ASCII to the end
  write_text(path, text);
  Config config = text_config(path);
  const auto data = open_dataset(config);
  CHECK(data->vocabulary().size() == 256);
  CHECK(data->epoch_samples() == 12);  // 89 targets
  CHECK(!data->packed());
  CHECK(!data->task());
  const auto targets = validation_targets(*data);
  REQUIRE(targets.size() == 9);
  CHECK(targets.front() == 191);
  CHECK(targets.back() == 199);
  CHECK(evaluation_samples(config.train, *data) == 2);

  config.data.val_fraction = 0;
  CHECK(open_dataset(config)->validation_samples() == 0);
}

TEST_CASE("a text's characters, with a file of its own to validate on") {
  const TemporaryDirectory directory;
  write_text(directory.file("a.txt"), "abcabcabcabcabcabcabcabcabc");
  write_text(directory.file("b.txt"), "abcd\xC3\xA9");
  Config config = text_config(directory.file("a.txt"));
  config.data.unit = TextUnit::characters;
  config.data.val_path = directory.file("b.txt");
  const auto data = open_dataset(config);
  CHECK(data->vocabulary().size() == 5);
  CHECK(validation_targets(*data) == std::vector<std::int32_t>{1, 2, 3, 4});
  CHECK(model_vocabulary(config, data->vocabulary()) == 5);
  config.model.vocab = 8;
  CHECK(model_vocabulary(config, open_dataset(config)->vocabulary()) == 8);
  config.model.vocab = 4;
  const std::string message = thrown<UsageError>([&] { open_dataset(config); });
  CHECK(has(message, "model.vocab is 4"));
  CHECK(has(message, "allowed: 5 or more"));
}

TEST_CASE("token files: every id is looked at before a run") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("t.bin");
  write_text(path, as_uint16(ramp(200, 50)));
  Config config = tokens_config(path);
  CHECK(open_dataset(config)->vocabulary().size() == 50);
  config.model.vocab = 64;
  CHECK(open_dataset(config)->vocabulary().size() == 64);

  config.data.vocab = 50;  // 50 .. 63 only pad the model
  CHECK(open_dataset(config)->vocabulary().size() == 50);

  for (const int bad : {50, 63, 64, 65535}) {
    std::vector<int> ids = ramp(200, 50);
    ids[187] = bad;
    write_text(path, as_uint16(ids));
    const std::string message = thrown<Error>([&] { open_dataset(config); });
    CHECK(has(message, path));
    CHECK(has(message, "187"));
    CHECK(has(message, std::to_string(bad)));
  }
  config.data.val_path = directory.file("v.bin");
  write_text(path, as_uint16(ramp(200, 50)));
  write_text(config.data.val_path, as_uint16({1, 2, 77}));
  CHECK(has(thrown<Error>([&] { open_dataset(config); }), config.data.val_path));
}

TEST_CASE("documents in a token file") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("t.bin");
  write_text(path, as_uint16(ramp(200, 5)));
  Config config = tokens_config(path);
  config.data.end_of_document = 4;
  CHECK(open_dataset(config)->packed());
  config.data.end_of_document = 5;
  const std::string message = thrown<UsageError>([&] { open_dataset(config); });
  CHECK(has(message, "data.end_of_document is 5"));
  CHECK(has(message, "0 to 4"));
  config.data.kind = DataKind::copy;
  CHECK(has(thrown<UsageError>([&] { open_dataset(config); }), "data.end_of_document is 5"));
}

TEST_CASE("too short, empty or missing: the file, what is needed, what was found") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.txt");
  Config config = text_config(path);
  CHECK(has(thrown<Error>([&] { open_dataset(config); }), path));  // missing
  write_text(path, "");
  CHECK(has(thrown<Error>([&] { open_dataset(config); }), path));

  // One step is 2 x 8 + 1 = 17 tokens; 18 of 20 bytes are for training, 17 of 19.
  write_text(path, std::string(20, 'a'));
  CHECK_NOTHROW(open_dataset(config));
  write_text(path, std::string(18, 'a'));
  const std::string message = thrown<Error>([&] { open_dataset(config); });
  CHECK(has(message, path));
  CHECK(has(message, "16 tokens found"));
  CHECK(has(message, "17 needed"));

  config.data.val_fraction = 0.01;
  write_text(path, std::string(60, 'a'));
  CHECK(has(thrown<Error>([&] { open_dataset(config); }), "1 tokens found for validation"));
  config.data.path.clear();
  CHECK(has(thrown<UsageError>([&] { open_dataset(config); }), "data.path"));
  config.data.path = directory.file("");
  CHECK(has(thrown<Error>([&] { open_dataset(config); }), config.data.path));  // a directory
}

TEST_CASE("made tasks: as many validation samples as asked for") {
  Config config;
  config.data.kind = DataKind::copy;
  config.model.context = 32;
  const auto data = open_dataset(config);
  CHECK(data->task());
  CHECK(data->vocabulary().size() == 32);
  CHECK(evaluation_samples(config.train, *data) == kTaskSamples);
  config.train.eval_samples = 1000;
  CHECK(evaluation_samples(config.train, *data) == 1000);
  config.model.vocab = 31;
  CHECK(has(thrown<UsageError>([&] { open_dataset(config); }), "data.kind copy has 32"));
}

}  // namespace
}  // namespace tilefold
