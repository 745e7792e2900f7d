"""Compares one training step of a pipeline with PyTorch's runtime, over Gloo with two processes.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_step

Interleaved1F1B on 2 ranks with 2 stages each and 8 microbatches, with one intra-op thread per rank on both sides. For
three sizes of stage, from all overhead to mostly compute, prints for alternating pairs the median step time of each side
their ratio (PyTorch / pipewright; above 1, pipewright is faster), and the time that the compute actions of the busiest rank
take without a pipeline, measured in pipewright's run; then the medians of the ratios, also those of the fastest steps,
which other work on the machine disturbs less. Fails only if one side fails; no speed is required.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

PIPEWRIGHT, OURS = sys.argv[1:3] if len(sys.argv) > 2 else (None, None)
RANKS, STAGES, MICROBATCHES, PAIRS = 2, 4, 8, 3
# (name, width, rows per microbatch, layers per stage, steps)
CASES = [("all overhead: one Linear(16, 16) and ReLU per stage, batch 4", 16, 4, 1, 60),
         ("one layer of 512 per stage, batch 64", 512, 64, 1, 30),
         ("4 layers of 512 per stage, batch 64", 512, 64, 4, 12)]


def run_rank(rank, folder, width, rows, layers, steps, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    stages = []
    for index in range(rank, STAGES, RANKS):
        module = torch.nn.Sequential(*[layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())])
        stages.append(PipelineStage(module, index, STAGES, torch.device("cpu")))
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    inputs, targets = torch.randn(MICROBATCHES * rows, width), torch.randn(MICROBATCHES * rows, width)
    times = []
    for step in range(2 * steps):
        for stage in stages:
            stage.submod.zero_grad()
        start = time.perf_counter()
        if rank == 0:
            schedule.step(inputs, return_outputs=False)
        else:
            schedule.step(target=targets, losses=[], return_outputs=False)
        if step >= steps:
            times.append(time.perf_counter() - start)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1:
        result.put([1e6 * statistics.median(times), 1e6 * min(times)])


def theirs(*case):
    with tempfile.TemporaryDirectory() as folder:
        result = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run_rank, args=(folder, *case, result), nprocs=RANKS)
        return result.get()


def ours(*case):
    done = subprocess.run([PIPEWRIGHT, "launch", "-n", str(RANKS), "--", OURS, *[str(number) for number in case]],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [[float(number) for number in re.search(f"{name} (.*) (.*)", done.stdout).groups()] for name in ("step_us", "compute_us")]


def main():
    for what, *case in CASES:
        print(what, flush=True)
        runs = []
        for _ in range(PAIRS):
            runs.append((theirs(*case), *ours(*case)))
            (slow, _), (fast, _), (compute, _) = runs[-1]
            print(f"  PyTorch {slow:.0f} us, ours {fast:.0f} us, ratio {slow / fast:.2f}; compute of the busiest rank "
                  f"{compute:.0f} us", flush=True)
        for index, name in enumerate(("median", "fastest")):
            columns = zip(*[(slow[index] / fast[index], slow[index] / compute[index], fast[index] / compute[index])
                            for slow, fast, compute in runs])
            ratio, peer_to_compute, to_compute = [statistics.median(column) for column in columns]
            print(f"  {name} steps: ratio {ratio:.2f}; PyTorch's step is {peer_to_compute:.2f} times the busiest rank's "
                  f"compute, ours {to_compute:.2f} times", flush=True)


if __name__ == "__main__":
    main()
