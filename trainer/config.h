// A run's settings, typed and checked. Each key is documented once, in trainer/config_schema.cc,
// from which --help-config prints; the values below are the defaults.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "contract/attention.h"

namespace tilefold {

enum class ModelStyle : std::uint8_t { llama, gpt2 };
enum class DataKind : std::uint8_t { text, tokens, recall, copy };
enum class TextUnit : std::uint8_t { bytes, characters };

struct RunConfig {
  std::string name = "run";
  std::string out;  // default runs/NAME
  std::int64_t seed = 1;
  std::string device = "auto";  // auto, cpu, cuda
  std::int64_t threads = 0;     // CPU threads a rank; 0: all allowed cores, shared by local ranks
};

struct ModelConfig {
  ModelStyle style = ModelStyle::llama;
  std::int64_t layers = 2;
  std::int64_t width = 64;
  std::int64_t heads = 2;
  std::int64_t kv_heads = 0;   // 0: heads
  std::int64_t ffn_width = 0;  // 0: gpt2 4 width; llama 8/3 width, up to a multiple of 64
  std::int64_t context = 256;
  std::int64_t vocab = 0;  // 0: what the data has
  DType dtype = DType::f32;
  DType residual_dtype = DType::f32;
  bool tie_embeddings = true;
  bool bias = false;   // of linear layers and layer norms (gpt2)
  double dropout = 0;  // gpt2: embedding, residual and attention
  double norm_eps = 1e-5;
  double rope_base = 10000;
  double init_deviation = 0.02;
};

struct AttentionConfig {
  AttentionStrategy strategy = AttentionStrategy::automatic;
  std::array<std::int64_t, 2> window{-1, 0};  // left, right; always causal
  double softcap = 0;
  bool deterministic = true;
};

struct DataConfig {
  DataKind kind = DataKind::copy;
  std::string path;                   // text, tokens
  std::string val_path;               // default: the tail of path
  double val_fraction = 0.1;          // of path, without val_path
  TextUnit unit = TextUnit::bytes;    // text
  std::string dataset = "tokens";     // tokens, HDF5: name of the data set
  std::int64_t vocab = 0;             // tokens: ids of the tokenizer; 0: model.vocab, or the file's
  std::int64_t end_of_document = -1;  // token id that ends a document; -1: one stream
  std::int64_t symbols = 32;          // copy, recall: symbols drawn from
  std::int64_t pairs = 8;             // recall: key-value pairs
  std::int64_t filler = 64;           // recall: tokens between pairs and questions
  std::int64_t samples = 0;           // copy, recall: samples an epoch; 0: never repeats
};

struct TrainConfig {
  std::int64_t steps = 200;
  std::int64_t global_batch = 8;  // sequences a step, over all ranks
  std::int64_t micro_batch = 8;   // sequences a forward, each rank
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup_steps = 20;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double clip = 1.0;              // 0: none
  std::int64_t eval_every = 50;   // steps; 0: only at the end
  std::int64_t eval_samples = 0;  // sequences of the validation split; 0: all of it (synthetic: 64)
  std::int64_t log_every = 1;     // steps between metrics lines
};

struct MemoryConfig {
  std::string policy = "all";  // what is saved for backward: all
  std::int64_t limit = 0;      // bytes; 0 (auto): what is available
  bool check = false;          // poison, guard zones and high-water marks (slow)
};

struct CheckpointConfig {
  std::int64_t every = 100;  // steps; 0: only at the end
  std::int64_t keep = 2;     // newest kept
  bool row_constants = true;
};

struct ParallelConfig {
  bool shard_optimizer = false;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  AttentionConfig attention;
  DataConfig data;
  TrainConfig train;
  MemoryConfig memory;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
  std::int64_t keys_read = 0;  // no setting: how many of them a file and --set gave
};

// Reads a YAML file, applies --set overrides ("a.b=c") and checks everything; throws UsageError
// with one line: file, line, key, value, what is allowed, and the nearest key where a key is
// unknown.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);
// As load_config, from text (a checkpoint's).
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides);
// "c.yaml: 17 keys read": beside the resolved config it shows that nothing of a file was dropped.
std::string keys_read_text(const std::string& path, const Config& config);
// The resolved config as YAML; parse_config of it gives the same config.
std::string to_yaml(const Config& config);
// Every key: type, default, allowed, meaning.
std::string config_help();

// "24GB" (1e9), "2GiB" (2^30), "512MiB", plain bytes; nothing if it is no size above 0.
std::optional<std::int64_t> parse_size(const std::string& text);
// The same; throws UsageError that begins with `what`.
std::int64_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace tilefold
