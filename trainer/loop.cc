#include "trainer/loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "comm/nccl.h"
#include "io/atomic_file.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/evaluation_text.h"
#include "trainer/flops.h"
#include "trainer/message.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/ranks.h"
#include "trainer/report/memory_report.h"
#include "trainer/report/resident.h"
#include "trainer/session.h"
#include "trainer/signals.h"
#include "trainer/train_step.h"
#include "trainer/unused_gpu.h"

namespace tilefold {
namespace {

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Planned for the largest of several uses, or for the most documents that samples have.
bool upper_bound(const std::string& name) {
  return name.ends_with("workspace") || name.ends_with("/cu_seqlens");
}

class Loop {
 public:
  Loop(const Config& config, ExistingRun existing, Communicator& comm)
      : comm_(comm), existing_(existing), directory_(config.run.out) {
    gpus_ = assign_gpus(comm, config.run.device);
    together(comm, [&] {
      session_ = open_training(config, comm, gpu_of(gpus_, comm));
      if (lead()) lock_ = directory_.take(existing);
    });
    comm.barrier();  // the directory is there
    together(comm, [&] { load(); });
    device_comm_ = open_device_communicator(comm, *session_->device, *session_->stream);
    gather_weights(sums(), *session_);
    if (lead()) announce();
    const Config& c = session_->config;
    batch_ = split_batch(c.train, comm.size());
    step_.emplace(c, sums(), *session_->data, session_->run, *session_->arena, session_->context(),
                  start_.consumed);
    evaluator_.emplace(comm, *session_->data, session_->run, *session_->arena, session_->context(),
                       batch_.micro);
  }

  int run() {
    const std::int64_t steps = session_->config.train.steps;
    StopSignals signals;
    Progress progress(STDERR_FILENO, Progress::shows_bar(STDERR_FILENO), start_.step, steps);
    std::optional<MetricsFile> metrics;
    // The last step's evaluation is made again when a run that had ended is taken up.
    if (lead())
      metrics.emplace(directory_.metrics(), start_.step, std::min(start_.step, steps - 1));
    std::int64_t step = start_.step;
    int stopped = 0;
    bool ahead = false;  // the next step was started
    double last = seconds();
    double queued_next = 0;  // seconds that starting it took
    for (; step < steps && (stopped == 0 || ahead); ++step) {
      const double queued = ahead ? queued_next : start(step);
      ahead = stopped == 0 && may_look_ahead(step);
      if (ahead) queued_next = start(step + 1);
      const StepResult result = step_->finish();
      // Where the host is slower than the device, a step that none follows ends with the last one.
      const double took = std::max(seconds() - last, queued);
      last = seconds();
      if (!result.finite()) {
        progress.finish();
        throw Error(fmt::format(
            "step {}: loss {} and gradient norm {} are not both finite; the update was left out "
            "and the run stops. Weights are those before the step; try a lower train.lr or a "
            "longer train.warmup_steps, and --resume from the last checkpoint",
            step + 1, result.loss, result.grad_norm));
      }
      if (step == start_.step) device_used_ = session_->device->used_bytes();
      const double tokens = static_cast<double>(batch_.global * session_->config.model.context);
      if (lead()) {
        progress.step(step, result.loss, tokens / took, seconds(), device_facts(tokens / took));
        if ((step + 1) % session_->config.train.log_every == 0 || step + 1 == steps)
          metrics->write({.step = step + 1,
                          .loss = result.loss,
                          .lr = result.lr,
                          .grad_norm = result.grad_norm,
                          .tokens = static_cast<std::int64_t>(tokens) * (step + 1),
                          .tokens_per_s = tokens / took,
                          .ms = took * 1e3});
      }
      stopped = std::max(stopped, stop_signal(signals));
      if (ahead) continue;
      const bool over = step + 1 == steps;
      if (due(step + 1, session_->config.train.eval_every) && !over)
        evaluate(step + 1, progress, metrics);
      if ((due(step + 1, session_->config.checkpoint.every) && !over) || stopped != 0)
        save(step + 1);
      last = seconds();
    }
    if (stopped != 0 && step < steps) {
      progress.finish();
      report_memory();
      if (lead())
        message(fmt::format("tilefold: signal {}: saved after step {} of {}; --resume continues\n",
                            stopped, step, steps));
      return 128 + stopped;
    }
    if (start_.step < steps) save(steps);
    const Evaluation evaluation = evaluate(steps, progress, metrics);
    progress.finish();
    if (lead()) fmt::print("{}", evaluation_text(evaluation, session_->data->task()));
    report_memory();
    return 0;
  }

 private:
  bool lead() const { return comm_.rank() == 0; }
  // The communicator that sums in the device's memory.
  Communicator& sums() { return device_comm_ ? *device_comm_ : comm_; }
  static bool due(std::int64_t done, std::int64_t every) { return every > 0 && done % every == 0; }

  // Seconds that it took.
  double start(std::int64_t step) {
    const double begin = seconds();
    step_->start(step);
    return seconds() - begin;
  }

  // Whether step + 1 may be queued before the result of `step` is known: on a device that works on
  // its own, where nothing looks at the weights between the two.
  bool may_look_ahead(std::int64_t step) const {
    const Config& c = session_->config;
    return session_->device->info().kind == DeviceKind::cuda && step + 1 < c.train.steps &&
           !due(step + 1, c.train.eval_every) && !due(step + 1, c.checkpoint.every);
  }

  // "  mfu 45%/38%  23.1 GiB": FLOP utilization with attention counted in full and as far as it is
  // visible, and memory in use; empty where the device tells neither.
  std::string_view device_facts(double tokens_per_s) {
    const double peak = session_->device->info().matrix_flops * comm_.size();
    if (device_used_ < 0) return {};
    std::size_t length = 0;
    if (peak > 0) {
      const FlopsPerToken flops =
          flops_per_token(session_->config.model, session_->config.attention,
                          session_->run.model->parameter_count());
      length = static_cast<std::size_t>(std::snprintf(facts_, sizeof facts_, "  mfu %.1f%%/%.1f%%",
                                                      100 * flops.full * tokens_per_s / peak,
                                                      100 * flops.visible * tokens_per_s / peak));
    }
    length += static_cast<std::size_t>(
        std::snprintf(facts_ + length, sizeof facts_ - length, "  %.2f GiB",
                      static_cast<double>(device_used_) / (1 << 30)));
    return {facts_, length};
  }

  // The newest checkpoint when resuming, else fresh weights.
  void load() {
    const std::string newest =
        existing_ == ExistingRun::resume ? newest_checkpoint(directory_.checkpoints()) : "";
    if (newest.empty()) return start_anew(*session_);
    start_ = resume_from(newest, *session_);
    const std::int64_t steps = session_->config.train.steps;
    if (start_.step > steps)
      throw UsageError(
          fmt::format("--resume: {} is after step {}, train.steps is {}; allowed: {} "
                      "or more, or another run",
                      newest, start_.step, steps, start_.step));
    if (lead()) message(fmt::format("resuming from {} after step {}\n", newest, start_.step));
  }

  void announce() const {
    const Config& c = session_->config;
    write_file_atomically(directory_.config(), to_yaml(c));
    message(to_yaml(c));
    message(fmt::format(
        "device {}; {} {}; {} allowed cores; {} parameters; arenas {} ({} bytes)\n",
        session_->device->info().name, comm_.size(), comm_.size() == 1 ? "rank" : "ranks",
        allowed_cores(), session_->run.model->parameter_count(),
        human_bytes(session_->run.plan.arena_bytes()), session_->run.plan.arena_bytes()));
    mention_unused_gpu(c.run.device, session_->device->info());
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank)
      message(fmt::format("{}\n", line_of(gpus_, rank)));
    if (device_comm_)
      message(fmt::format("{} took {} of GPU memory\n", nccl_version(),
                          human_bytes(device_comm_->device_bytes())));
    // A GPU's rank has threads of NCCL, of the heartbeat and of the driver beside its own.
    constexpr int kCoresOfRank = 4;
    if (device_comm_ && allowed_cores() < kCoresOfRank &&
        allowed_cores() * comm_.local_size() < sysconf(_SC_NPROCESSORS_ONLN))
      message(fmt::format("warning: a rank has {} of {} cores; give mpirun --bind-to none\n",
                          allowed_cores(), sysconf(_SC_NPROCESSORS_ONLN)));
    const int threads = threads_of(c.run, comm_.local_size());
    if (session_->device->info().kind == DeviceKind::cpu && threads > allowed_cores())
      message(
          fmt::format("warning: {} threads share {} allowed cores; set run.threads, or give "
                      "mpirun --bind-to none\n",
                      threads, allowed_cores()));
  }

  Evaluation evaluate(std::int64_t done, Progress& progress, std::optional<MetricsFile>& metrics) {
    const std::int64_t samples = evaluation_samples(session_->config.train, *session_->data);
    Evaluation evaluation = (*evaluator_)(samples);
    if (!lead() || evaluation.targets() == 0) return evaluation;
    metrics->write(done, evaluation, session_->data->task());
    progress.message(session_->data->task()
                         ? fmt::format("step {}: validation loss {:.4f}, accuracy {:.2f}%", done,
                                       evaluation.loss(), 100 * evaluation.accuracy())
                         : fmt::format("step {}: validation loss {:.4f}", done, evaluation.loss()));
    return evaluation;
  }

  // The signal that any rank received, so that all stop after the same step.
  int stop_signal(const StopSignals& signals) {
    double signal = signals.received();
    comm_.all_reduce_max({&signal, 1});
    return static_cast<int>(signal);
  }

  void save(std::int64_t done) {
    require_equal_weights(comm_, *session_);
    const WholeState state = gather_state(comm_, *session_);
    together(comm_, [&] {
      if (!lead()) return;
      save_checkpoint(directory_.checkpoint(done), *session_, {done, step_->consumed()},
                      batch_.micro, state);
      prune(directory_.checkpoints(), session_->config.checkpoint.keep);
    });
  }

  void report_memory() {
    MeasuredMemory measured;
    measured.arenas = session_->device->allocated_bytes();
    if (device_comm_) measured.nccl = device_comm_->device_bytes();
    const ResidentMemory now = resident_memory();
    measured.resident_start = session_->before.now;
    measured.resident_peak = now.peak;
    if (session_->device->info().kind == DeviceKind::cpu) {
      std::int64_t outside = now.anonymous - session_->before.anonymous;
      for (const auto& memory : session_->arena->memory()) outside -= resident_bytes(memory);
      measured.outside = std::max<std::int64_t>(outside, 0);  // pages are counted in batches
    }
    measured.device_start = session_->device_used_before;
    measured.device_end = session_->device->used_bytes();
    std::vector<std::string> untouched;
    if (session_->config.memory.check) untouched = session_->arena->untouched();
    if (!lead()) return;
    const Plan& plan = session_->run.plan;
    write_file_atomically(directory_.memory(), memory_json(plan, measured));
    const auto naive = plan_naive_training(session_->config, session_->device->info(), comm_.size(),
                                           session_->data->most_documents());
    fmt::print("{}", memory_table(plan, naive ? &naive->plan : nullptr, measured));
    for (const std::string& name : untouched)
      if (!upper_bound(name)) fmt::print("planned and never written: {}\n", name);
    fmt::print("run: {}\n", directory_.path());
    if (measured.arenas != plan.arena_bytes())
      throw Error(
          fmt::format("memory: the arenas hold {} bytes and {} were planned; they must be "
                      "equal, so this is a fault of the program",
                      measured.arenas, plan.arena_bytes()));
  }

  IgnorePipeSignal no_pipe_signal_;
  Communicator& comm_;
  ExistingRun existing_;
  RunDirectory directory_;
  std::unique_ptr<DirectoryLock> lock_;  // no second process writes here
  std::vector<RankGpu> gpus_;            // of the ranks; empty on the CPU
  std::unique_ptr<Session> session_;
  std::unique_ptr<Communicator> device_comm_;  // null where comm_ serves
  ResumePoint start_;
  BatchSplit batch_;
  std::int64_t device_used_ = -1;  // bytes, after the first step
  char facts_[64];
  std::optional<TrainStep> step_;
  std::optional<Evaluator> evaluator_;
};

}  // namespace

int train(const Config& config, ExistingRun existing, Communicator& comm) {
  return Loop(config, existing, comm).run();
}

}  // namespace tilefold
