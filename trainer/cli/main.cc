// tilefold: one program, one subcommand a task. Results go to stdout, messages to stderr.
// Exit status: 0 all was done; 2 usage or config error; 1 anything else; 128 + signal if stopped.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "base/error.h"
#include "trainer/cli/attention.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/doctor.h"
#include "trainer/config.h"
#include "trainer/ranks.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{
      "Tilefold: exact, IO-aware attention with a transformer trainer around it.\n"
      "Memory is planned to the byte before a run; see each command's --help."};
  app.name("tilefold");
  app.require_subcommand(0, 1);
  bool config_help = false;
  app.add_flag("--help-config", config_help,
               "every key of a config: type, default, allowed, meaning");
  tilefold::add_train_command(app);
  tilefold::add_plan_command(app);
  tilefold::add_eval_command(app);
  tilefold::add_generate_command(app);
  tilefold::add_attention_commands(app);
  tilefold::add_checkpoint_commands(app);
  tilefold::add_doctor_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and the like
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tilefold: %s (see tilefold --help)\n", error.what());
    return 2;
  }
  if (config_help) {
    std::fputs(tilefold::config_help().c_str(), stdout);
    return 0;
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  return 0;
}

// Where a standard stream is closed, the next file that is opened would take its place, and
// messages would land in it. Writes to a closed stdout still fail, as they must.
void open_standard_streams() {
  constexpr int kModes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", kModes[fd]) < 0) return;  // lowest free: fd
}

// The status that belongs to what the command did or threw, which is said.
int status_of(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    // A full disk must not look like success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::fputs("tilefold: standard output could not be written\n", stderr);
      return 1;
    }
    return status;
  } catch (const tilefold::ExitStatus& exit) {
    return exit.status;
  } catch (const tilefold::UsageError& error) {
    std::fprintf(stderr, "tilefold: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("tilefold: the system has no more memory for this\n", stderr);
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilefold: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  const int status = status_of(argc, argv);
  if (status == 0) return 0;
  // Libraries may wait at the end for threads of theirs, in vain where memory is short.
  std::fflush(nullptr);
  std::_Exit(status);
}
