#include "pipewright/cli/command_table.h"

#include "pipewright/cli/input.h"
#include "pipewright/cli/model_options.h"
#include "pipewright/cli/run.h"
#include "pipewright/cli/search_request.h"
#include "pipewright/cli/views.h"
#include "pipewright/schedule/lowering/lower.h"

namespace pipewright::cli {
namespace {

using Options = std::vector<OptionSpec>;

Options concat(const std::vector<Options>& lists) {
  Options all;
  for (const Options& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

ArgumentSpec some_sources() {
  ArgumentSpec sources = source_argument();
  sources.repeats = true;
  return sources;
}

OptionSpec json_option() { return flag_option("--json", "print the result as JSON"); }

OptionSpec level_option(std::string_view help) {
  return choice_option("--level", "LEVEL",
                       {ir::name(ir::Level::kComputeOnly), ir::name(ir::Level::kComputeComms)},
                       help);
}

// --memory has a second meaning for simulate.
std::vector<OptionSpec> simulate_shape_options() {
  std::vector<OptionSpec> options = shape_options();
  for (OptionSpec& option : options) {
    if (option.name == "--memory")
      option.help =
          "memory of the lower bound: K activations per rank, as search counts them; an error if "
          "the schedule needs more; K,K,... is one per rank; default: each rank's own peak of live "
          "activations. V-Adaptive is planned for K";
  }
  options.push_back(
      text_option("--memory-bytes", "BYTES",
                  "memory of the lower bound in bytes per rank, as search counts them; default: "
                  "rank_memory_bytes of --costs"));
  return options;
}

std::vector<std::string_view> passes() {
  return {schedule::pass_names().begin(), schedule::pass_names().end()};
}

std::vector<std::string_view> view_names() {
  std::vector<std::string_view> names;
  for (const View& view : views()) names.push_back(view.name);
  return names;
}

const std::vector<CommandSpec>& table() {
  static const std::vector<CommandSpec> kCommands = {
      {"list",
       "List the schedules of the catalogue",
       "Lists every schedule, or one of them, with its placement, its constraints on ranks, stages "
       "and microbatches, its own options, formulas for its bubble and memory, its source, and the "
       "ready-made file of it, which is built in.",
       {{{ValueKind::kName, "NAME", {}}, "a schedule's name; default: all schedules", true}},
       {json_option()},
       {{"pipewright list", "all schedules"}, {"pipewright list ZBV --json", "one, as data"}},
       run_list},
      {"print",
       "Print a schedule in any format",
       "Generates a schedule by name, or reads a file, and prints it as a timeline, as a table "
       "with one line per step and one column per rank, as a picture, or in a file format.\n"
       "A named schedule is lowered to a program, with SEND, RECV, UNSHARD, RESHARD and "
       "REDUCE_GRAD, unless --level is compute_only; a file is printed at its own level. Lowering "
       "follows PyTorch unless an option says otherwise. The format of a file is that of its "
       "extension, or else of its first bytes.\n"
       "A file with a recording is drawn as it ran, unless costs are given.\n"
       "Errors in the schedule go to stderr, with exit code 1 and nothing on stdout; but the "
       "timeline or svg of a schedule that deadlocks shows how far each rank gets, and who waits "
       "for whom.",
       {source_argument()},
       concat({shape_options(),
               {level_option("level to print; default: a file's own, compute_comms for a name. "
                             "compute_only drops the communication of a program"),
                choice_option(
                    "--format", "FORMAT", view_names(),
                    "output format; default: that of the extension of FILE, which it must not "
                    "contradict; otherwise timeline on a terminal, table elsewhere"),
                flag_option("--comms",
                            "show rows of SENDs, RECVs and data-parallel actions (timeline only)"),
                {"--against",
                 "",
                 {ValueKind::kSource, "SOURCE", {}},
                 "a second schedule to draw on the same time axis, at the level of the first (html "
                 "only)"},
                {"--output",
                 "-o",
                 {ValueKind::kFile, "FILE", {}},
                 "write to FILE, completely or not at all; - is stdout. A folder for kineto, with "
                 "one file per rank"}},
               cost_options(),
               lowering_options(),
               {choice_option("--print-after", "PASS", passes(),
                              "also print the schedule after this lowering pass, to stderr")}}),
       {{"pipewright print 1F1B --ranks 4 --microbatches 8 --level compute_only",
         "a compute order, as a table"},
        {"pipewright print ZBV --ranks 4 --microbatches 8 --format csv -o zbv.csv",
         "a program that PyTorch can load"},
        {"pipewright print plan.csv -o plan.plan", "convert PyTorch's CSV to a .plan"},
        {"pipewright print ZBV --ranks 4 --microbatches 8 --against 1F1B -o zbv.html",
         "an interactive page that compares two schedules"},
        {"pipewright print - --format json <plan.csv", "read stdin"}},
       run_print},
      {"validate",
       "Check a schedule for errors",
       "Reads a schedule, or generates it by name, and reports everything that is wrong with it: "
       "syntax, shape, completeness, order and data flow, stages that are used while they are not "
       "unsharded, gradients that are not reduced, SENDs and RECVs that meet in the wrong order, "
       "and deadlocks.\n"
       "A compute order is checked, lowered, and the program checked, unless --level is "
       "compute_only. With --json, a valid program comes with a certificate: its peaks of "
       "activations, receive buffers and unsharded stages, and the communicators of each rank.\n"
       "Several sources are checked one after the other; with --json, the result then has a list "
       "`sources`.\n"
       "Exit code: 0 if all are valid, 1 if one is not, 2 if one cannot be read.",
       {some_sources()},
       concat({shape_options(),
               {level_option("compute_only: check a compute order without lowering it"),
                json_option()},
               lowering_options()}),
       {{"pipewright validate plan.csv", "all errors at once, each with its place"},
        {"pipewright validate plan.csv --ranks 4 --microbatches 8", "check the shape as well"},
        {"pipewright validate plan.csv --json", "output for a program"},
        {"pipewright validate *.csv --max-errors 1", "the first error of each file"}},
       run_validate},
      {"simulate",
       "Predict how long a schedule takes",
       "Runs a schedule without a GPU and reports its makespan, bubble rate, critical path and "
       "lower bound, and each rank's span, busy and idle time and peak of activations.\n"
       "A named schedule or a compute order runs with ideal transfers, unless --level is "
       "compute_comms; a program runs under its channel model, whose queues its transfers occupy. "
       "By default F, I and W take 1 each, B takes 2 and transfers take no time.\n"
       "Times are per stage, as in the papers. A model cut into twice as many stages takes half as "
       "long per stage: compare its schedules with --scale F=0.5,B=0.5, or by `pipewright diff`, "
       "which scales the default times by itself.\n"
       "A file with a recording is simulated with the costs that were recorded, unless --costs has "
       "others; a report follows of how far the recorded run is from the prediction, and which "
       "rank is slow.\n"
       "Exit code: 1 if the schedule is invalid or deadlocks.",
       {source_argument()},
       concat(
           {simulate_shape_options(),
            {level_option("compute_comms: lower a compute order first"), json_option(),
             flag_option("--actions", "add start, end and slack of each action (--json only)"),
             text_option("--jitter", "SIGMA",
                         "also report the spread of the makespan when action times are scaled by "
                         "log-normal noise with standard deviation SIGMA"),
             number_option("--runs", "N", "runs of --jitter; default: 100"),
             number_option("--seed", "N", "seed of --jitter; default: 1")},
            cost_options(),
            lowering_options()}),
       {{"pipewright simulate 1F1B --ranks 4 --microbatches 8", "unit costs"},
        {"pipewright simulate ZB-H1 --ranks 8 --microbatches 24 --forward 18.522 --backward-input "
         "18.086 --backward-weight 9.337 --comm 0.601",
         "a row of the Zero Bubble paper"},
        {"pipewright simulate plan.csv --costs costs.json --slow 2=1.5", "what if rank 2 is slow?"},
        {"pipewright simulate found.plan --costs costs.json --memory 5",
         "derive cost and bound of a plan that search found"}},
       run_simulate},
      {"search",
       "Find a schedule for given costs and memory",
       "Searches for a compute order of low cost (the longest span of any rank) within a memory "
       "limit, and reports a lower bound on the cost of every other order, which tells how far "
       "from the optimum the found one can be. It is never worse than a schedule of the catalogue "
       "that fits. Costs are those of simulate, per stage.\n"
       "The budget counts evaluated actions, so the result is the same on every machine and with "
       "any number of threads. The search stops at the bound. Ctrl-C stops it and prints and "
       "writes the best schedule so far.\n"
       "With --placement free, the costs are those of --stages stages; placements with more stages "
       "cut each of them evenly. Every placement is searched with 2/8 to 8/8 of the memory.",
       {},
       concat({search_options(), cost_options()}),
       {{"pipewright search --ranks 8 --microbatches 24 --memory 8 --forward 18.522 "
         "--backward-input 18.086 --backward-weight 9.337 --comm 0.601 -o found.plan",
         "one stage per rank with the memory of 1F1B"},
        {"pipewright search --ranks 4 --microbatches 8 --placement free --memory 4 --budget small",
         "what each placement makes of each amount of memory"}},
       run_search},
      {"costs",
       "Predict the costs of a model's layers",
       "Writes a costs file with the layers of a transformer: the embedding, the blocks, the head. "
       "Times, sizes and transfers follow from its shape, the way it is trained, and a machine; "
       "docs/costs.md has the formulas, how near they are to measurements, and what they leave "
       "out. "
       "`search --layers`, `simulate` and the other commands take the file, for any number of "
       "stages.",
       {},
       costs_options(),
       {{"pipewright costs --model config.json --gpu h100 --seq 8192 --tp 8 -o costs.json",
         "one microbatch of a model from Hugging Face"},
        {"pipewright costs --blocks 96 --hidden-size 12288 --heads 96 --vocabulary 51200 --seq "
         "2048 "
         "--gpu a100 --tp 8",
         "a shape"},
        {"pipewright search --layers --costs costs.json --ranks 8 --microbatches 32 -o found.plan",
         "cut it into stages and schedule them"}},
       run_costs},
      {"plan",
       "Choose how to divide a training run over GPUs",
       "Predicts the step of every division of a model over so many GPUs that fits their memory: "
       "pipeline, tensor and data parallelism, stages per rank, microbatch size, recomputation; "
       "the "
       "fastest first. Costs are those of `pipewright costs`, stages are cut by the least maximum "
       "of "
       "work, and the schedule is 1F1B or Interleaved1F1B; the bound is one for every cut and "
       "schedule of the division. `search --layers` with the costs that --output writes may find a "
       "better one.",
       {},
       plan_options(),
       {{"pipewright plan --model config.json --gpu h100 --gpus 64 --batch 512 --seq 8192",
         "what fits on 64 GPUs, best first"},
        {"pipewright plan --model config.json --gpu h100 --gpus 64 --batch 512 --seq 8192 -o "
         "run.plan",
         "write the best one, and its costs as run.plan.costs.json"}},
       run_plan},
      {"diff",
       "Compare two schedules",
       "Compares two schedules rank by rank, and reports the effect of the change on makespan, "
       "bubble and memory, as simulate computes them. Compute orders are compared as such; an "
       "order is lowered first if the other schedule is a program.\n"
       "Schedules with different numbers of stages are compared as schedules of one model: the "
       "times of the second are scaled by the ratio of the numbers, and its activations are "
       "counted in stages of the first. A line says so. Times that are given, by --costs or one by "
       "one, are those of a stage of either schedule, and are not scaled.\n"
       "A file with a recording is compared as it ran, with a schedule that takes the times that "
       "were recorded.\n"
       "Exit code: 0 if they are equal, 1 if they differ or one of them is invalid.",
       {source_argument(), source_argument()},
       concat({shape_options(),
               {level_option("compute_comms: lower both first"), json_option()},
               cost_options(),
               lowering_options()}),
       {{"pipewright diff 1F1B ZB-H1 --ranks 4 --microbatches 8", "two schedules of one shape"},
        {"pipewright diff 1F1B run.json --ranks 4 --microbatches 8", "predicted against measured"},
        {"pipewright diff old.plan new.plan --costs costs.json", "the effect of an edit"}},
       run_diff},
      {"explain",
       "Explain an error code, or what an action waits for",
       "Given the code of an error, prints the rule that was broken, why it matters, and a wrong "
       "and a right example.\n"
       "With --at, explains an action of a schedule: when it runs, what it waits for and which of "
       "that decides, what waits for it, and its slack. Ranks and steps are those of `print`, "
       "counted from 0.",
       {{{ValueKind::kSource, "CODE|SOURCE", {}},
         "an error code, as in error[PW006] (pw6 and 6 are short for it), or with --at a "
         "schedule"}},
       concat(
           {{text_option("--at", "RANK:STEP|ACTION", "the action to explain, as in 2:14 or 0F1")},
            shape_options(),
            {level_option("level to explain; default: a file's own, compute_comms for a name")},
            cost_options(),
            lowering_options()}),
       {{"pipewright explain PW006", "the rule behind error[PW006]"},
        {"pipewright explain 1F1B --ranks 4 --microbatches 8 --at 0:12",
         "why there is a gap before an action"},
        {"pipewright explain 1F1B --ranks 4 --microbatches 8 --at 0B3", "when an action runs"}},
       run_explain},
      {"checkpoint",
       "List, check or export checkpoints",
       "ls shows what is in a checkpoint: its tensors, and from its manifest the step, the mesh "
       "and the schedule that it was saved with. verify reads all of it and reports everything "
       "that is wrong: files that are missing, cut off, damaged or of another checkpoint, and "
       "tensors that are incomplete; or that the files do not say whether something is missing. "
       "export writes the tensors of the model whole, to one file or to a folder that Hugging "
       "Face's tools and safetensors.torch read.\n"
       "DIR is a checkpoint, a folder of checkpoints (of which export takes the latest), a folder "
       "of safetensors files as Hugging Face's and PyTorch's tools write them, or one such file.\n"
       "Exit code: 0 if all is whole, 1 if something is damaged, 2 if it cannot be read or "
       "written.",
       {{{ValueKind::kChoice, "ls|verify|export", {"ls", "verify", "export"}}, "what to do"},
        {{ValueKind::kFile, "DIR", {}}, "a checkpoint, a folder of them, or a safetensors file"}},
       {
           {"--output",
            "-o",
            {ValueKind::kFile, "OUT", {}},
            "export: write a file if it ends in .safetensors, otherwise a folder"},
           flag_option("--all", "export: the optimizer's tensors (optim.*) too"),
           text_option("--max-file-size", "SIZE",
                       "export to a folder: data per file, as in 200MB; default: 5GB"),
           json_option(),
       },
       {{"pipewright checkpoint ls ckpt", "which checkpoints are there"},
        {"pipewright checkpoint verify ckpt/step-000100", "is it whole?"},
        {"pipewright checkpoint export ckpt -o model.safetensors", "the latest, as one file"}},
       run_checkpoint},
      {"launch",
       "Run a program as ranks on this machine",
       "Starts N processes of a program with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE, "
       "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; OMP_NUM_THREADS is 1 unless it is set. Each "
       "line of output is prefixed with its rank.\n"
       "When a rank fails, the others are terminated, and the exit code is that of the failed "
       "rank, or 128 + the signal that ended it. Ctrl-C terminates all ranks; those still running "
       "after five seconds are killed.",
       {{{ValueKind::kFile, "PROGRAM", {}}, "program to run; the arguments after it are its own"}},
       {
           {"--num-ranks", "-n", {ValueKind::kNumber, "N", {}}, "number of processes; default: 1"},
           {"--master-port", "", {ValueKind::kNumber, "PORT", {}, 65535}, "default: a free port"},
       },
       {{"pipewright launch -n 4 ./train --steps 100", "four ranks"},
        {"pipewright launch -n 4 -- ./train --steps 100", "the same"}},
       run_launch,
       true},
      {"completion",
       "Print a completion script for a shell",
       "Prints a script that completes commands, options and their values.",
       {{{ValueKind::kChoice, "SHELL", {"bash", "zsh", "fish"}}, "bash, zsh or fish"}},
       {},
       {{"source <(pipewright completion bash)", "for this bash session"},
        {"source <(pipewright completion zsh)", "for this zsh session"},
        {"pipewright completion fish | source", "for this fish session"}},
       run_completion},
  };
  return kCommands;
}

}  // namespace

std::span<const CommandSpec> commands() { return table(); }

std::span<const OptionSpec> common_options() {
  static const OptionSpec kCommon[] = {
      choice_option("--color", "WHEN", {"auto", "always", "never"},
                    "use colours; auto follows NO_COLOR and the terminal"),
      number_option("--width", "N", "columns of output; default: the terminal's"),
      number_option("--max-errors", "N",
                    "errors to print, except as JSON; default: 20 on a terminal, all elsewhere"),
      {"--help", "-h", {}, "show this help"},
  };
  return kCommon;
}

}  // namespace pipewright::cli
