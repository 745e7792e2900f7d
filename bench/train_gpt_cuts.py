"""Predicted against measured steps of train_gpt for five cuts of its blocks over two ranks.

    bazel build //cli:pipewright //examples:train_gpt
    python3 bench/train_gpt_cuts.py [RUNS]

The costs of the layers are predicted from the model's shape and scaled to a profile of the even cut. Steps are the
fastest of RUNS runs (default 3), in turn over the cuts. Fails if the cuts are not in the predicted order. Needs two cores without
other work: with it, the times say nothing.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPEWRIGHT, TRAIN_GPT = ROOT / "bazel-bin/cli/pipewright", ROOT / "bazel-bin/examples/train_gpt"
BLOCKS, DIM, CONTEXT, BATCH, MICROBATCHES = 8, 128, 128, 16, 8
# Of the embedding, the blocks and the output layer: from four blocks on each rank to none on the second one.
CUTS = ["5,5", "6,4", "7,3", "8,2", "9,1"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def train(*options):
    return run(TRAIN_GPT, "--data", ROOT / "docs/command_line.md", "--layers", BLOCKS, "--dim", DIM, "--context", CONTEXT,
               "--batch", BATCH, "--microbatches", MICROBATCHES, "--pp", 2, "--steps", 10, "--json", *options)


def seconds_of_step(plan):
    lines = [json.loads(line) for line in train("--schedule", plan).splitlines()]
    return min(BATCH * CONTEXT / line["tokens_per_s"] for line in lines if "step" in line)


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train("--schedule", "ZB-H1", "--profile", folder / "measured.json")
        run(PIPEWRIGHT, "costs", "--blocks", BLOCKS, "--hidden-size", DIM, "--heads", DIM // 16, "--vocabulary", 256, "--seq", CONTEXT,
            "--microbatch-size", BATCH // MICROBATCHES, "--gpu", "a100", "--fit", folder / "measured.json",
            "-o", folder / "costs.json")
        plans, predicted = [], []
        for cut in CUTS:
            plans.append(folder / f"{cut}.plan")
            shape = ["--ranks", 2, "--microbatches", MICROBATCHES, "--costs", folder / "costs.json", "--comm", 0]
            run(PIPEWRIGHT, "search", *shape, "--cut", cut, "--merge-backward", "--budget", "small", "-o", plans[-1])
            simulated = json.loads(run(PIPEWRIGHT, "simulate", plans[-1], *shape[4:], "--json"))
            predicted.append(simulated["makespan"])
        measured = [1e3 * min(times) for times in zip(*([seconds_of_step(plan) for plan in plans] for _ in range(runs)))]
    print("cut    predicted   measured")
    for cut, expected, took in zip(CUTS, predicted, measured):
        print(f"{cut:6} {expected:6.1f} ms  {took:6.1f} ms  {100 * (expected / took - 1):+.0f}%")
    order = sorted(range(len(CUTS)), key=lambda index: predicted[index])
    if [measured[index] for index in order] != sorted(measured):
        sys.exit("the measured order is not the predicted one")


if __name__ == "__main__":
    main()
