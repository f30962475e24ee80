// The command line's parts. Each adds its subcommands to the program; their callbacks throw Error,
// UsageError or ExitStatus, which main turns into the exit status.
#pragma once

namespace CLI {
class App;
}

namespace tilefold {

void add_train_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_checkpoint_commands(CLI::App& app);

}  // namespace tilefold
