"""Compares a step of pipewright_torch.Schedule with PyTorch's runtime, over Gloo.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:python_step

Interleaved1F1B with 2 stages per rank and 8 microbatches, of the same Python modules on both sides, one intra-op thread per
rank. Both sides run in the same two processes, in turn; of FSDP2, on 2 x 2 processes, PyTorch's runs on Gloo's groups and
ours on the groups of the backend `pipewright`, in turn too, and then the stages alone, each with one gather and one reduction
and without a pipeline, which no runtime can do without. Prints the median step of each pair and its ratio (PyTorch /
pipewright; above 1, pipewright is faster), then the median of the ratios. Fails only if one side fails.
"""

import os
import statistics
import tempfile
import threading
import time

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

MICROBATCHES, PAIRS = 8, 5
# (name, width, rows per microbatch, layers per stage, steps)
OVERHEAD = ("one Linear(16, 16) and ReLU per stage, batch 4", 16, 4, 1, 60)
CASES = [OVERHEAD, ("one layer of 512 per stage, batch 64", 512, 64, 1, 30), ("4 layers of 512 per stage, batch 64", 512, 64, 4, 12)]
SHARDED = ("two layers of 64 per stage, FSDP2 over 2 x 2, batch 8", 64, 8, 2, 10), ("two layers of 512, FSDP2 over 2 x 2, batch 64", 512, 64, 2, 5)


class Side:
    """A schedule of this rank's stages, of PyTorch or of ours."""

    def __init__(self, make, modules, rank, width, rows, group=None):
        stages = [PipelineStage(module, index, 4, torch.device("cpu"), group=group) for index, module in modules.items()]
        self.schedule = make(stages)
        self.modules, self.rank = modules, rank
        self.inputs, self.targets = torch.randn(MICROBATCHES * rows, width), torch.randn(MICROBATCHES * rows, width)

    def times(self, steps):
        times = []
        for step in range(steps + max(3, steps // 4)):
            for module in self.modules.values():
                module.zero_grad()
            start = time.perf_counter()
            if self.rank == 0:
                self.schedule.step(self.inputs, return_outputs=False)
            else:
                self.schedule.step(target=self.targets, losses=[], return_outputs=False)
            times.append(time.perf_counter() - start)
        return 1e6 * statistics.median(times[-steps:])


def theirs(stages):
    return ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)


def ours(stages):
    return pw.Schedule("Interleaved1F1B", stages, MICROBATCHES, torch.nn.functional.mse_loss)


class Alone:
    """In the place of a schedule: forwards and backwards of each stage, one after the other."""

    def __init__(self, stages):
        self.modules = [stage.submod for stage in stages]
        for module in self.modules:
            module.set_reshard_after_forward(False)

    def step(self, inputs=None, target=None, **_):
        for module in self.modules:
            for number, rows in enumerate((target if inputs is None else inputs).chunk(MICROBATCHES)):
                is_last = number == MICROBATCHES - 1
                module.set_requires_gradient_sync(is_last)
                module.set_is_last_backward(is_last)
                module.set_reshard_after_backward(is_last)
                torch.nn.functional.mse_loss(module(rows.detach().requires_grad_()), rows).backward()


def layers_of(width, layers):
    return torch.nn.Sequential(*[layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())])


def end():
    """All ranks at once: while one lives, it watches the others."""
    dist.barrier()
    os._exit(0)


def in_turn(rank, folder, result, width, rows, layers, steps, spins):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    modules = {index: layers_of(width, layers) for index in (rank, rank + 2)}
    sides = [Side(make, modules, rank, width, rows) for make in (theirs, ours)]
    ended = threading.Event()
    if spins:
        threading.Thread(target=lambda: [None for _ in iter(ended.is_set, True)], daemon=True).start()
    pairs = []
    for pair in range(PAIRS + 1):  # the first one warms up
        order = sides if pair % 2 else sides[::-1]
        times = {}
        for side in order:
            dist.barrier()
            times[side] = side.times(steps)
        pairs.append([times[side] for side in sides])
    ended.set()
    if rank == 1:
        result.put(pairs[1:])
    end()


def sharded(rank, folder, result, make, backend, width, rows, layers, steps):
    torch.set_num_threads(1)
    pw.register_backend()
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage = mesh["pp"].get_local_rank()
    modules = {}
    for index in (stage, stage + 2):
        module = layers_of(width, layers)
        for child in module:
            if isinstance(child, torch.nn.Linear):
                fully_shard(child, mesh=mesh["dp"])
        modules[index] = fully_shard(module, mesh=mesh["dp"])
    times = Side(make, modules, stage, width, rows, mesh["pp"].get_group()).times(steps)
    if rank == 3:
        result.put(times)
    end()


def run(work, ranks, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        result = mp.get_context("fork").SimpleQueue()
        mp.start_processes(work, (folder, result, *arguments), nprocs=ranks, start_method="fork")
        return result.get()


def report(what, pairs):
    print(what, flush=True)
    for slow, fast in pairs:
        print(f"  PyTorch {slow:.0f} us, ours {fast:.0f} us, ratio {slow / fast:.2f}", flush=True)
    ratios = [slow / fast for slow, fast in pairs]
    print(f"  median ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    for what, *case in CASES:
        report(what, run(in_turn, 2, *case, False))
    what, *case, _ = OVERHEAD
    report(f"{what}, beside a Python thread that never rests", run(in_turn, 2, *case, 10, True))
    for what, *case in SHARDED:
        times = [[run(sharded, 4, theirs, "gloo", *case), run(sharded, 4, ours, "pipewright", *case), run(sharded, 4, Alone, "pipewright", *case)]
                 for _ in range(PAIRS)]
        report(what, [one[:2] for one in times])
        alone = statistics.median(one[2] for one in times)
        print(f"  the stages alone {alone:.0f} us, of which PyTorch's step is {statistics.median(one[0] for one in times) / alone:.2f} times, "
              f"ours {statistics.median(one[1] for one in times) / alone:.2f}", flush=True)


if __name__ == "__main__":
    main()
