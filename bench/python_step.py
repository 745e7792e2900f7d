"""Steps of the same pipelines in PyTorch's runtime and in ours from Python: the same modules, in the same processes, in turn.

Run by Bazel with tag `peer`: bazel test --config=peer //bench:python_step. Prints per case the median over the pairs of PyTorch's
time divided by ours, and of the CPU time of all ranks. FSDP2 is on torch's Gloo groups for PyTorch and on ours for us.
"""

import os
import statistics
import sys
import tempfile
import time

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

STAGES, MICROBATCHES = 4, 8
mse = torch.nn.functional.mse_loss


def mlp(width, layers):
    return torch.nn.Sequential(*[layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())])


# name, width, layers per stage, rows of a microbatch, steps per round; then ranks that shard
CASES = [("overhead: Linear(16)", 16, 1, 4, 60, 1), ("one layer of 512", 512, 1, 64, 20, 1), ("four layers of 512", 512, 4, 64, 10, 1),
         ("FSDP2 2 x 2, width 64", 64, 2, 8, 8, 2), ("FSDP2 2 x 2, width 512", 512, 2, 64, 4, 2)]


def stages_of(case, mesh, device=torch.device("cpu")):
    _, width, layers, _, _, shards = case
    rank, stages = mesh["pp"].get_local_rank(), []
    for index in (rank, rank + 2):
        torch.manual_seed(index)
        module = mlp(width, layers)
        if shards > 1:
            for child in module:
                if isinstance(child, torch.nn.Linear):
                    fully_shard(child, mesh=mesh["dp"])
            fully_shard(module, mesh=mesh["dp"])
        stages.append(PipelineStage(module, index, STAGES, device, group=mesh["pp"].get_group()))
    return stages


def round_of(case, schedule, stages, inputs):
    """The median time of a step, and the CPU time of all ranks per step, in ms."""
    first, last = stages[0].is_first, stages[-1].is_last
    times = []
    dist.barrier()
    cpu = time.process_time()
    for _ in range(case[4]):
        for stage in stages:
            stage.submod.zero_grad()
        start = time.perf_counter()
        schedule.step(*([inputs] if first else []), return_outputs=False, **({"target": inputs, "losses": []} if last else {}))
        times.append(time.perf_counter() - start)
    cpu = torch.tensor([(time.process_time() - cpu) / case[4]])
    dist.all_reduce(cpu)
    return 1e3 * statistics.median(times), 1e3 * cpu.item()


def run_rank(rank, store, cases, pairs, results):
    torch.set_num_threads(1)
    pw.register_backend()
    world_size = 2 * cases[0][5]
    dist.init_process_group("pipewright", init_method=f"file://{store}", rank=rank, world_size=world_size)
    meshes = {"ours": init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("pp", "dp"))}
    meshes["PyTorch"] = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("pp", "dp"),
                                         backend_override={"pp": "gloo", "dp": "gloo"})
    for case in cases:
        torch.manual_seed(0)
        inputs = torch.randn(MICROBATCHES * case[3], case[1])
        stages = {name: stages_of(case, mesh) for name, mesh in meshes.items()}
        schedules = {"PyTorch": ScheduleInterleaved1F1B(stages["PyTorch"], MICROBATCHES, loss_fn=mse),
                     "ours": pw.Schedule("Interleaved1F1B", stages["ours"], MICROBATCHES, mse)}
        rows = []
        for pair in range(pairs + 1):  # the first warms up
            order = list(schedules) if pair % 2 else list(reversed(schedules))
            found = {name: round_of(case, schedules[name], stages[name], inputs) for name in order}
            if pair:
                rows.append([*found["PyTorch"], *found["ours"]])
        if rank == 0:
            results.put((case[0], rows))
        schedules["ours"].close()
    dist.barrier()
    os._exit(0)


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for shards in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            results = mp.get_context("spawn").SimpleQueue()
            mp.spawn(run_rank, (os.path.join(folder, "store"), [case for case in CASES if case[5] == shards], pairs, results),
                     nprocs=2 * shards)
            while not results.empty():
                name, rows = results.get()
                ratios = [row[0] / row[2] for row in rows]
                print(f"{name:24} {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}), CPU time "
                      f"{statistics.median(row[1] / row[3] for row in rows):.2f}x; PyTorch {statistics.median(row[0] for row in rows):.1f} ms, "
                      f"ours {statistics.median(row[2] for row in rows):.1f} ms", flush=True)


if __name__ == "__main__":
    main()
