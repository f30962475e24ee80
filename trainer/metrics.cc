#include "trainer/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "io/atomic_file.h"

namespace tilefold {
namespace {

// The step of a line that this file's writer wrote; -1 if it is none.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view kStart = "{\"step\":";
  if (!line.starts_with(kStart) || !line.ends_with('}')) return -1;
  std::int64_t step = -1;
  std::from_chars(line.data() + kStart.size(), line.data() + line.size(), step);
  return step;
}

bool is_evaluation(std::string_view line) {
  return line.find("\"val_loss\":") != std::string_view::npos;
}

// What stays of a file when a run goes on after `keep_steps` steps.
std::string kept(const std::string& path, std::int64_t keep_steps, std::int64_t keep_evaluations) {
  std::ifstream in(path, std::ios::binary);
  std::string text, line;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no line end: the run died while writing it
    const std::int64_t step = step_of(line);
    if (step < 0 || step > keep_steps) continue;
    if (step <= keep_evaluations || !is_evaluation(line)) text += line + '\n';
  }
  return text;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t keep_steps,
                         std::int64_t keep_evaluations)
    : path_(path) {
  write_file_atomically(path,
                        keep_steps > 0 ? kept(path, keep_steps, keep_evaluations) : std::string());
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  require(fd_ >= 0, path, ": cannot be written: ", std::strerror(errno));
  line_.reserve(std::size_t{1} << 14);  // more than the longest line
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::flush_line() {
  line_.push_back('\n');
  std::string_view rest = line_;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    require(written > 0, path_, ": cannot be written: ", std::strerror(errno));
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  line_.clear();
}

void MetricsFile::write(const StepMetrics& metrics) {
  JsonWriter json(line_);
  json.begin_object()
      .member("step", metrics.step)
      .member("loss", metrics.loss)
      .member("lr", metrics.lr)
      .member("grad_norm", metrics.grad_norm)
      .member("tokens", metrics.tokens)
      .member("tokens_per_s", metrics.tokens_per_s)
      .member("ms", metrics.ms)
      .end_object();
  flush_line();
}

void MetricsFile::write(std::int64_t step, const Evaluation& evaluation, bool task) {
  JsonWriter json(line_);
  json.begin_object().member("step", step).member("val_loss", evaluation.loss());
  if (task) json.member("accuracy", evaluation.accuracy());
  json.key("val_loss_by_position").begin_array();
  for (int bucket = 0; bucket < Evaluation::kBuckets; ++bucket) {
    if (evaluation.targets(bucket) == 0) continue;
    json.begin_object()
        .member("from", Evaluation::first_position(bucket))
        .member("to", Evaluation::last_position(bucket))
        .member("loss", evaluation.loss(bucket))
        .end_object();
  }
  json.end_array().end_object();
  flush_line();
}

}  // namespace tilefold
