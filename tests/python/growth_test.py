"""A thousand steps leave nothing behind: no memory, no Python objects, no descriptors, no threads.

Run by Bazel with tag `peer`.
"""

import gc
import os
import resource
import tempfile
import unittest

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipelines import DTYPE, Mlp, build, mse, placement
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MICROBATCHES, STEPS, WARM_UP = 2, 1000, 200
ALLOWED = 256 << 10  # bytes: a third of a KiB per step


def in_use():
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return len(gc.get_objects()), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def run_rank(rank, store):
    torch.set_num_threads(1)
    pw.register_backend()
    dist.init_process_group("pipewright", init_method=f"file://{store}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    mine = [index for index, rank in enumerate(placement("ZBV", 2, 4)) if rank == mesh["pp"].get_local_rank()]
    modules = {index: fully_shard(build(lambda index: Mlp(), index), mesh=mesh["dp"]) for index in mine}
    schedule = pw.Schedule("ZBV", modules, MICROBATCHES, mse, group=mesh["pp"])
    optimizer = torch.optim.SGD([parameter for module in modules.values() for parameter in module.parameters()], lr=1e-3)
    batch = torch.randn(2 * MICROBATCHES, 8, dtype=DTYPE)
    for number in range(STEPS):
        if number in (0, WARM_UP):  # the list of objects takes memory when it is first made
            before = in_use()
        losses = []
        schedule.step(*([batch] if 0 in modules else []), target=batch if 3 in modules else None, losses=losses)
        schedule.confirm()
        optimizer.step()
        optimizer.zero_grad()
    del losses
    objects, descriptors, threads, resident = (after - one for one, after in zip(before, in_use()))
    assert objects < 100, (rank, objects)
    assert descriptors == 0, (rank, descriptors)
    assert threads == 0, (rank, threads)
    assert resident < ALLOWED, (rank, resident)
    dist.barrier()
    os._exit(0)


class GrowthTest(unittest.TestCase):
    def test_a_thousand_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(run_rank, (os.path.join(folder, "store"),), nprocs=4, start_method="fork")


if __name__ == "__main__":
    unittest.main(verbosity=2)
