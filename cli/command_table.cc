#include "pipewright/cli/command_table.h"

#include "pipewright/cli/commands.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/lowering/lower.h"

namespace pipewright::cli {
namespace {

template <typename Item>
std::vector<Item> operator+(std::vector<Item> left, const std::vector<Item>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

OptionSpec level_option(std::string_view help) {
  return {"--level",
          "",
          {ValueKind::kChoice,
           "LEVEL",
           {ir::name(ir::Level::kComputeOnly), ir::name(ir::Level::kComputeComms)}},
          help};
}

std::vector<std::string_view> passes() {
  return {schedule::pass_names().begin(), schedule::pass_names().end()};
}

std::vector<std::string_view> print_formats() {
  std::vector<std::string_view> names(picture_formats().begin(), picture_formats().end());
  names.emplace_back("table");
  for (const ir::FormatInfo& format : ir::formats()) names.push_back(format.name);
  return names;
}

const std::vector<CommandSpec>& table() {
  static const std::vector<CommandSpec> kCommands = {
      {"list",
       "list the schedules that can be made",
       "Lists every schedule with its constraints, placement, formulas of bubble and memory, and a "
       "ready file of it.",
       {},
       {},
       {{"pipewright list", "what there is"}},
       run_list},
      {"print",
       "print a schedule in any format",
       "Makes a schedule by name, or reads a file, and prints it as a table, with a line a step "
       "and a column a rank, or in\n"
       "one of the file formats. A name is lowered to a program, with SEND, RECV, UNSHARD, RESHARD "
       "and REDUCE_GRAD, unless\n"
       "--level says compute_only; a file is printed at its own level. Lowering is PyTorch's "
       "unless an option says otherwise.\n"
       "The format of a file is told from its extension, else from its first bytes. A file that "
       "cannot be read gives errors\n"
       "on stderr, exit code 1, and nothing else.",
       {source_argument()},
       shape_options() +
           std::vector<OptionSpec>{
               level_option("by default compute_comms for a name, a file's own level for a file"),
               {"--format",
                "",
                {ValueKind::kChoice, "FORMAT", print_formats()},
                "timeline (the default on a terminal), table (elsewhere), a picture, or a file "
                "format"},
               {"--comms", "", {}, "with timeline: rows of SENDs, RECVs and data-parallel actions"},
               {"--output",
                "-o",
                {ValueKind::kFile, "FILE", {}},
                "write to FILE, whole or not at all; - is stdout"},
           } +
           cost_options() + lowering_options() +
           std::vector<OptionSpec>{
               {"--print-after",
                "",
                {ValueKind::kChoice, "PASS", passes()},
                "also print what this pass gave, to stderr"},
           },
       {{"pipewright print 1F1B --ranks 4 --microbatches 8 --level compute_only",
         "an order, as a table"},
        {"pipewright print ZBV --ranks 4 --microbatches 8 --format csv -o zbv.csv",
         "a program that PyTorch loads"},
        {"pipewright print plan.csv --format plan -o plan.plan", "from PyTorch's CSV to a .plan"},
        {"pipewright print - --format json <plan.csv", "from stdin"}},
       run_print},
      {"validate",
       "check a schedule",
       "Reads a schedule, or makes it by name, and reports all that is wrong with it: text, "
       "shape,\n"
       "completeness, order and data flow, stages that are not unsharded, gradients that are not\n"
       "reduced, SENDs and RECVs that meet in the wrong order or wait for each other for ever. A\n"
       "compute order is checked, lowered, and the program checked, unless --level says "
       "compute_only.\n"
       "--json adds a certificate: the peaks of activations, receive buffers and unsharded "
       "stages.\n"
       "Exit code 0: valid. 1: invalid. 2: the file cannot be opened.",
       {source_argument()},
       shape_options() +
           std::vector<OptionSpec>{
               level_option("compute_only: do not lower an order"),
               {"--json", "", {ValueKind::kNone, "", {}}, "the result as JSON on stdout"},
           } +
           lowering_options(),
       {{"pipewright validate plan.csv", "all errors at once, each with its place"},
        {"pipewright validate plan.csv --ranks 4 --microbatches 8", "and the shape is that"},
        {"pipewright validate plan.csv --json", "for a program"}},
       run_validate},
      {"simulate",
       "say how long a schedule takes",
       "Runs a schedule without a GPU: makespan, each rank's own span and idle time, bubble rate, "
       "critical path,\n"
       "lower bounds, activations. A name, or a compute order, runs with ideal transfers, unless "
       "--level says\n"
       "compute_comms; a program runs under its channels, which its transfers occupy. By default "
       "F, "
       "I and W take 1 and\n"
       "transfers nothing. Exit code 1: the schedule is wrong, or deadlocks.",
       {source_argument()},
       shape_options() +
           std::vector<OptionSpec>{
               level_option("compute_comms: lower an order first"),
               {"--json", "", {ValueKind::kNone, "", {}}, "the result as JSON on stdout"},
               {"--actions", "", {}, "with --json: start, end and slack of each action"},
               {"--jitter",
                "",
                {ValueKind::kText, "SIGMA", {}},
                "also the spread of the makespan, where each action takes a factor that deviates "
                "so"},
               {"--runs", "", {ValueKind::kNumber, "N", {}}, "with --jitter: by default 100"},
               {"--seed", "", {ValueKind::kNumber, "N", {}}, "with --jitter: by default 1"},
           } +
           cost_options() + lowering_options(),
       {{"pipewright simulate 1F1B --ranks 4 --microbatches 8", "at unit cost"},
        {"pipewright simulate ZB-H1 --ranks 8 --microbatches 24 --forward 18.522 --backward-input "
         "18.086 --backward-weight 9.337 --comm 0.601",
         "a row of the Zero Bubble paper"},
        {"pipewright simulate plan.csv --costs costs.json --slow 2=1.5", "what if rank 2 is slow"}},
       run_simulate},
      {"diff",
       "say what changed between two schedules",
       "Compares two schedules rank by rank, and says what the change does to makespan, bubble and "
       "memory: the numbers\n"
       "are those of simulate on each. Orders are compared as orders; an order beside a program is "
       "lowered first.\n"
       "Exit code 0: equal. 1: different, or one of them is wrong.",
       {source_argument(), source_argument()},
       shape_options() +
           std::vector<OptionSpec>{
               level_option("compute_comms: lower both first"),
               {"--json", "", {ValueKind::kNone, "", {}}, "the result as JSON on stdout"},
           } +
           cost_options() + lowering_options(),
       {{"pipewright diff 1F1B ZB-H1 --ranks 4 --microbatches 8", "two schedules of one shape"},
        {"pipewright diff old.plan new.plan --costs costs.json", "what an edit does"}},
       run_diff},
      {"explain",
       "explain a rule, or what an action waits for",
       "Prints what the rule of an error's code asks for, why, and a wrong and a right example.\n"
       "With --at: of an action of a schedule, when it runs, what it waits for, which of that "
       "decides, what waits for it, and\n"
       "by how much it could end later. Steps are the cells of `print`, counted from 0.",
       {{{ValueKind::kSource, "CODE|SOURCE", {}},
         "the code of a rule, as in error[PW006], or with --at a schedule"}},
       std::vector<OptionSpec>{
           {"--at", "", {ValueKind::kText, "RANK:STEP", {}}, "the action to explain, as in 2:14"},
       } + shape_options() +
           std::vector<OptionSpec>{
               level_option("by default compute_comms for a name, a file's own level for a file"),
           } +
           cost_options() + lowering_options(),
       {{"pipewright explain PW006", "what is behind error[PW006]"},
        {"pipewright explain 1F1B --ranks 4 --microbatches 8 --at 0:12", "what is behind a gap"}},
       run_explain},
      {"launch",
       "run a program as ranks on this machine",
       "Starts N processes of a program with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE, "
       "LOCAL_WORLD_SIZE,\n"
       "MASTER_ADDR, MASTER_PORT; OMP_NUM_THREADS is 1 unless it is set. Each line that they write "
       "has its rank in front.\n"
       "When a rank fails the others are ended, and the exit code is that of the rank, or 128 + "
       "its "
       "signal. Ctrl-C ends\n"
       "all of them; what has not ended after five seconds is killed.",
       {{{ValueKind::kFile, "PROGRAM", {}}, "the program; what follows are its own arguments"}},
       {
           {"--num-ranks", "-n", {ValueKind::kNumber, "N", {}}, "processes; by default 1"},
           {"--master-port", "", {ValueKind::kNumber, "PORT", {}}, "by default one that is free"},
       },
       {{"pipewright launch -n 4 ./train --steps 100", "four ranks"},
        {"pipewright launch -n 4 -- ./train --steps 100", "the same"}},
       run_launch,
       true},
      {"completion",
       "print a completion script for a shell",
       "Prints a script that completes commands, options and their values.",
       {{{ValueKind::kChoice, "SHELL", {"bash", "zsh", "fish"}}, "bash, zsh or fish"}},
       {},
       {{"source <(pipewright completion bash)", "for this bash"},
        {"source <(pipewright completion zsh)", "for this zsh"},
        {"pipewright completion fish | source", "for this fish"}},
       run_completion},
  };
  return kCommands;
}

}  // namespace

std::span<const CommandSpec> commands() { return table(); }

std::span<const OptionSpec> common_options() {
  static const OptionSpec kCommon[] = {
      {"--color",
       "",
       {ValueKind::kChoice, "WHEN", {"auto", "always", "never"}},
       "colours; auto heeds NO_COLOR and the terminal"},
      {"--width",
       "",
       {ValueKind::kNumber, "N", {}},
       "columns to use; by default those of the terminal"},
      {"--help", "-h", {}, "show this help"},
  };
  return kCommon;
}

}  // namespace pipewright::cli
