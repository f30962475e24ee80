#include "trainer/config_schema.h"

#include <charconv>
#include <cstdio>
#include <limits>

#include "base/error.h"

namespace tilefold {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string shortest(double x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x);
  return {text, end.ptr};
}

// Text as a YAML scalar that reads back as the same text.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

bool plain(const YamlNode& node) { return node.type == YamlNode::Type::scalar && !node.quoted; }

std::string range_text(std::int64_t least, std::int64_t most) {
  return most == kMost ? str(least, " or more") : str(least, " to ", most);
}

// A key of each type. `Section` and `Field` are members of Config and of its section.
template <class Section, class Field>
struct At {
  Section Config::*section;
  Field Section::*field;
  Field& in(Config& c) const { return c.*section.*field; }
  const Field& in(const Config& c) const { return c.*section.*field; }
};

template <class Section, class Field>
At(Section Config::*, Field Section::*) -> At<Section, Field>;

template <class Section>
ConfigKey integer(std::string section, std::string name, At<Section, std::int64_t> at,
                  std::int64_t least, std::int64_t most, std::string meaning) {
  return {std::move(section),
          std::move(name),
          "integer",
          range_text(least, most),
          std::move(meaning),
          [=](Config& c, const YamlNode& node) {
            const auto value = plain(node) ? parse_integer(node.text) : std::nullopt;
            if (!value || *value < least || *value > most) return false;
            at.in(c) = *value;
            return true;
          },
          [=](const Config& c) { return std::to_string(at.in(c)); }};
}

template <class Section>
ConfigKey number(std::string section, std::string name, At<Section, double> at,
                 std::function<bool(double)> allowed, std::string allowed_text,
                 std::string meaning) {
  return {std::move(section),
          std::move(name),
          "number",
          std::move(allowed_text),
          std::move(meaning),
          [=](Config& c, const YamlNode& node) {
            const auto value = plain(node) ? parse_number(node.text) : std::nullopt;
            if (!value || !allowed(*value)) return false;
            at.in(c) = *value;
            return true;
          },
          [=](const Config& c) { return shortest(at.in(c)); }};
}

template <class Section>
ConfigKey truth(std::string section, std::string name, At<Section, bool> at, std::string meaning) {
  return {std::move(section),
          std::move(name),
          "true or false",
          "true, false",
          std::move(meaning),
          [=](Config& c, const YamlNode& node) {
            const auto value = plain(node) ? parse_truth(node.text) : std::nullopt;
            if (value) at.in(c) = *value;
            return value.has_value();
          },
          [=](const Config& c) { return std::string(at.in(c) ? "true" : "false"); }};
}

template <class Section>
ConfigKey text(std::string section, std::string name, At<Section, std::string> at,
               std::string allowed, std::string meaning) {
  return {std::move(section),
          std::move(name),
          "text",
          std::move(allowed),
          std::move(meaning),
          [=](Config& c, const YamlNode& node) {
            if (node.type != YamlNode::Type::scalar) return false;
            at.in(c) = node.text;
            return true;
          },
          [=](const Config& c) { return quoted(at.in(c)); }};
}

// One of a few words.
template <class Value>
struct Word {
  const char* name;
  Value value;
};

template <class Section, class Value>
ConfigKey word(std::string section, std::string name, At<Section, Value> at,
               std::vector<Word<Value>> words, std::string meaning) {
  std::string allowed;
  for (const Word<Value>& w : words) allowed += (allowed.empty() ? "" : ", ") + std::string(w.name);
  return {std::move(section),
          std::move(name),
          "word",
          std::move(allowed),
          std::move(meaning),
          [=](Config& c, const YamlNode& node) {
            for (const Word<Value>& w : words)
              if (node.type == YamlNode::Type::scalar && node.text == w.name) {
                at.in(c) = w.value;
                return true;
              }
            return false;
          },
          [=](const Config& c) {
            for (const Word<Value>& w : words)
              if (w.value == at.in(c)) return std::string(w.name);
            return std::string("?");
          }};
}

ConfigKey window_key() {
  return {"attention",
          "window",
          "two integers",
          "[left, 0], left -1 (no limit) or more",
          "keys a query sees before itself; the right limit is 0, for the trainer is causal",
          [](Config& c, const YamlNode& node) {
            if (node.type != YamlNode::Type::sequence || node.items.size() != 2) return false;
            if (!plain(node.items[0]) || !plain(node.items[1])) return false;
            const auto left = parse_integer(node.items[0].text);
            const auto right = parse_integer(node.items[1].text);
            if (!left || !right || *left < -1 || *right != 0) return false;
            c.attention.window = {*left, *right};
            return true;
          },
          [](const Config& c) {
            return str("[", c.attention.window[0], ", ", c.attention.window[1], "]");
          }};
}

ConfigKey limit_key() {
  return {"memory",
          "limit",
          "size",
          "auto, or a size: 2GiB, 141GB, bytes",
          "a run whose plan is larger is refused at the start; auto: what is available, to the "
          "container too",
          [](Config& c, const YamlNode& node) {
            if (node.type != YamlNode::Type::scalar) return false;
            const auto bytes = node.text == "auto" ? 0 : parse_size(node.text);
            if (bytes) c.memory.limit = *bytes;
            return bytes.has_value();
          },
          [](const Config& c) {
            return c.memory.limit == 0 ? std::string("auto") : std::to_string(c.memory.limit);
          }};
}

bool positive(double x) { return x > 0; }
bool not_negative(double x) { return x >= 0; }
bool fraction(double x) { return x >= 0 && x < 1; }
// What becomes a float32 on its way: neither 0 nor infinite there.
bool single(double x) { return x >= 1e-30 && x <= 1e30; }
bool single_or_zero(double x) { return x == 0 || single(x); }
constexpr char kSingle[] = "1e-30 to 1e30", kSingleOrZero[] = "0, or 1e-30 to 1e30";

std::vector<ConfigKey> run_keys() {
  using R = RunConfig;
  const auto run = &Config::run;
  return {
      text("run", "name", At{run, &R::name}, "no slashes", "names the run"),
      text("run", "out", At{run, &R::out}, "any", "directory it writes to; empty: runs/NAME"),
      integer("run", "seed", At{run, &R::seed}, 0, kMost, "of weights, data order and dropout"),
      word("run", "device", At{run, &R::device},
           std::vector<Word<std::string>>{{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
           "auto: the GPU when there is one"),
      integer("run", "threads", At{run, &R::threads}, 0, 4096,
              "CPU threads a rank; 0: the allowed cores, shared by the ranks of a host"),
  };
}

std::vector<ConfigKey> model_keys() {
  using M = ModelConfig;
  const auto model = &Config::model;
  const std::vector<Word<DType>> types{
      {"f32", DType::f32}, {"bf16", DType::bf16}, {"f64", DType::f64}};
  return {
      word("model", "style", At{model, &M::style},
           std::vector<Word<ModelStyle>>{{"llama", ModelStyle::llama}, {"gpt2", ModelStyle::gpt2}},
           "llama: RMSNorm, rotary positions, SwiGLU; gpt2: LayerNorm, learned positions, GELU"),
      integer("model", "layers", At{model, &M::layers}, 1, 20000, "transformer blocks"),
      integer("model", "width", At{model, &M::width}, 1, 1 << 20, "of the residual stream"),
      integer("model", "heads", At{model, &M::heads}, 1, 1 << 20,
              "query heads; width / heads is the head width, 1 to 256"),
      integer("model", "kv_heads", At{model, &M::kv_heads}, 0, 1 << 20,
              "key and value heads, a divisor of heads; 0: heads"),
      integer("model", "ffn_width", At{model, &M::ffn_width}, 0, 1 << 24,
              "of the feed-forward; 0: 4 width (gpt2), 8/3 width up to a multiple of 64 (llama)"),
      integer("model", "context", At{model, &M::context}, 1, std::int64_t{1} << 32,
              "tokens of a training sequence"),
      integer("model", "vocab", At{model, &M::vocab}, 0, 1 << 30,
              "token ids; 0: what the data has; more pads"),
      word("model", "dtype", At{model, &M::dtype}, types,
           "of weights and activations; bf16 keeps float32 masters"),
      word("model", "residual_dtype", At{model, &M::residual_dtype}, types,
           "of the residual stream"),
      truth("model", "tie_embeddings", At{model, &M::tie_embeddings},
            "the head's matrix is the embedding's"),
      truth("model", "bias", At{model, &M::bias}, "linear layers and norms have biases (gpt2)"),
      number("model", "dropout", At{model, &M::dropout}, fraction, "0 or more, below 1",
             "of embedding, attention and residual branches (gpt2)"),
      number("model", "norm_eps", At{model, &M::norm_eps}, single, kSingle,
             "added to the variance in norms"),
      number("model", "rope_base", At{model, &M::rope_base}, single, kSingle,
             "base of the rotary angles (llama)"),
      number(
          "model", "init_deviation", At{model, &M::init_deviation}, single, kSingle,
          "of matrices at the start, less into the residual; narrow models learn sooner from more"),
  };
}

std::vector<ConfigKey> attention_keys() {
  using A = AttentionConfig;
  const auto attention = &Config::attention;
  std::vector<Word<AttentionStrategy>> strategies;
  for (const AttentionStrategy s : {AttentionStrategy::automatic, AttentionStrategy::naive,
                                    AttentionStrategy::tiled, AttentionStrategy::split})
    strategies.push_back({name_of(s).data(), s});
  return {
      word("attention", "strategy", At{attention, &A::strategy}, strategies,
           "auto: by shape from the measured table; naive stores the n x n scores"),
      window_key(),
      number("attention", "softcap", At{attention, &A::softcap}, single_or_zero, kSingleOrZero,
             "scores become softcap tanh(score / softcap); 0: none"),
      truth("attention", "deterministic", At{attention, &A::deterministic},
            "same bits on every run; false allows a faster order of sums"),
  };
}

std::vector<ConfigKey> data_keys() {
  using D = DataConfig;
  const auto data = &Config::data;
  return {
      word("data", "kind", At{data, &D::kind},
           std::vector<Word<DataKind>>{{"text", DataKind::text},
                                       {"tokens", DataKind::tokens},
                                       {"recall", DataKind::recall},
                                       {"copy", DataKind::copy}},
           "text: a file; tokens: a token file; recall, copy: made from the seed"),
      text("data", "path", At{data, &D::path}, "a file", "text, tokens: what to train on"),
      text("data", "val_path", At{data, &D::val_path}, "a file",
           "text, tokens: what to validate on; empty: the tail of path"),
      number("data", "val_fraction", At{data, &D::val_fraction}, fraction, "0 or more, below 1",
             "of path that is kept for validation, without val_path"),
      word("data", "unit", At{data, &D::unit},
           std::vector<Word<TextUnit>>{{"bytes", TextUnit::bytes},
                                       {"characters", TextUnit::characters}},
           "text: what a token is"),
      text("data", "dataset", At{data, &D::dataset}, "a name", "tokens from HDF5: the data set"),
      integer(
          "data", "vocab", At{data, &D::vocab}, 0, 1 << 30,
          "tokens: ids of the tokenizer, others are refused; 0: model.vocab, or what the file has"),
      integer("data", "end_of_document", At{data, &D::end_of_document}, -1, kMost,
              "token id that ends a document: attention and targets stay inside; -1: one stream"),
      integer("data", "symbols", At{data, &D::symbols}, 1, 1 << 30, "copy, recall: drawn from"),
      integer("data", "pairs", At{data, &D::pairs}, 1, 1 << 30, "recall: key-value pairs"),
      integer("data", "filler", At{data, &D::filler}, 0, std::int64_t{1} << 32,
              "recall: tokens between the pairs and the questions"),
      integer("data", "samples", At{data, &D::samples}, 0, std::int64_t{1} << 62,
              "copy, recall: samples an epoch; 0: never the same twice"),
  };
}

std::vector<ConfigKey> train_keys() {
  using T = TrainConfig;
  const auto train = &Config::train;
  return {
      integer("train", "steps", At{train, &T::steps}, 1, kMost, "updates"),
      integer("train", "global_batch", At{train, &T::global_batch}, 1, 1 << 30,
              "sequences an update, over all ranks"),
      integer("train", "micro_batch", At{train, &T::micro_batch}, 1, 1 << 20,
              "sequences a forward, each rank"),
      number("train", "lr", At{train, &T::lr}, positive, "above 0", "largest learning rate"),
      number("train", "min_lr", At{train, &T::min_lr}, not_negative, "0 to lr",
             "learning rate of the last step"),
      integer("train", "warmup_steps", At{train, &T::warmup_steps}, 0, kMost,
              "steps of linear warm-up, at most train.steps; then half a cosine down to min_lr"),
      number("train", "weight_decay", At{train, &T::weight_decay}, not_negative, "0 or more",
             "decoupled, on matrices only"),
      number("train", "beta1", At{train, &T::beta1}, fraction, "0 or more, below 1", "of AdamW"),
      number("train", "beta2", At{train, &T::beta2}, fraction, "0 or more, below 1", "of AdamW"),
      number("train", "eps", At{train, &T::eps}, positive, "above 0", "of AdamW"),
      number("train", "clip", At{train, &T::clip}, not_negative, "0 or more",
             "largest global norm of the gradient; 0: none"),
      integer("train", "eval_every", At{train, &T::eval_every}, 0, kMost,
              "steps between evaluations; 0: only at the end"),
      integer("train", "eval_samples", At{train, &T::eval_samples}, 0, kMost,
              "validation sequences; 0: all of them (copy, recall: 64)"),
      integer("train", "log_every", At{train, &T::log_every}, 1, kMost,
              "steps between lines of metrics.jsonl"),
  };
}

std::vector<ConfigKey> other_keys() {
  return {
      word("memory", "policy", At{&Config::memory, &MemoryConfig::policy},
           std::vector<Word<std::string>>{{"all", "all"}},
           "what is saved for backward: all that it reads"),
      limit_key(),
      truth("memory", "check", At{&Config::memory, &MemoryConfig::check},
            "watch the arenas: poison, guard zones, high-water marks (slow; CPU)"),
      integer("checkpoint", "every", At{&Config::checkpoint, &CheckpointConfig::every}, 0, kMost,
              "steps between checkpoints; 0: only at the end"),
      integer("checkpoint", "keep", At{&Config::checkpoint, &CheckpointConfig::keep}, 1, kMost,
              "newest ones kept"),
      truth("checkpoint", "row_constants",
            At{&Config::checkpoint, &CheckpointConfig::row_constants},
            "save m and l of every layer, for checkpoint verify"),
      truth(
          "parallel", "shard_optimizer", At{&Config::parallel, &ParallelConfig::shard_optimizer},
          "share optimizer state and float32 masters out over the ranks: each updates its part of "
          "every weight"),
  };
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    for (auto&& part :
         {run_keys(), model_keys(), attention_keys(), data_keys(), train_keys(), other_keys()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& config_sections() {
  static const std::vector<std::pair<std::string, std::string>> sections{
      {"run", "where it runs and writes"},
      {"model", "the transformer"},
      {"attention", "how attention is computed"},
      {"data", "what it learns from"},
      {"train", "how it learns"},
      {"memory", "what the plan may take"},
      {"checkpoint", "what is saved when"},
      {"parallel", "several ranks"}};
  return sections;
}

}  // namespace tilefold
