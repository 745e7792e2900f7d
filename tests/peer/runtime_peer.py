"""PyTorch loads and runs our programs: schedules that it has no generator for, on Gloo processes.

runtime_peer.py PIPEWRIGHT. Each rank loads the CSV into _PipelineScheduleRuntime and takes one step; the gradients of every
stage, and the loss, are those of the whole model without a pipeline.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, ROWS_A_MICROBATCH = 8, 3
# (schedule, further words)
CASES = [("ZB-H1", []), ("ZB-H2", []), ("Eager1F1B", []), ("V-Half", []), ("V-Min", []), ("1F1B-V", []),
         ("Interleaved1F1B", ["--group-size", "5", "--extra-warmup"]),
         ("ZB-H1", ["--receives", "latest"]), ("V-Half", ["--receives", "latest"])]


def make_stage(index):
    torch.manual_seed(100 + index)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def batch(microbatches):
    torch.manual_seed(7)
    shape = (microbatches * ROWS_A_MICROBATCH, WIDTH)
    return torch.randn(shape), torch.randn(shape)


def unpipelined(num_stages, microbatches):
    """The loss and each stage's gradients, by plain autograd."""
    stages = [make_stage(index) for index in range(num_stages)]
    inputs, targets = batch(microbatches)
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(inputs), targets)
    loss.backward()
    return loss.detach(), [[p.grad for p in stage.parameters()] for stage in stages]


def run_rank(rank, ranks, folder, plans, failures):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for name, path, stage_ranks, microbatches in plans:
        num_stages = len(stage_ranks)
        wanted_loss, wanted = unpipelined(num_stages, microbatches)
        mine = [index for index in range(num_stages) if stage_ranks[index] == rank]
        modules = {index: make_stage(index) for index in mine}
        stages = [PipelineStage(modules[index], index, num_stages, torch.device("cpu")) for index in mine]
        schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
        # A CSV of this level does not say where the stages are, and PyTorch takes it for a loop.
        schedule.stage_index_to_group_rank = dict(enumerate(stage_ranks))
        for stage in stages:
            stage.stage_index_to_group_rank = schedule.stage_index_to_group_rank
            # A warm-up for NCCL, which in a V has a rank send to itself: Gloo cannot.
            stage._get_init_p2p_neighbors_ops = list
        schedule._load_csv(path, format="compute_comms")
        inputs, targets = batch(microbatches)
        losses = []
        last = num_stages - 1 in mine
        schedule.step(*([inputs] if 0 in mine else []), **({"target": targets, "losses": losses} if last else {}))
        if last and not torch.allclose(torch.stack(losses).mean(), wanted_loss, rtol=1e-5, atol=1e-6):
            failures.put(f"{name}: loss {torch.stack(losses).mean()} is not {wanted_loss}")
        for index in mine:
            for parameter, gradient in zip(modules[index].parameters(), wanted[index]):
                if not torch.allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-6):
                    failures.put(f"{name}: gradients of stage {index} on rank {rank} differ")
        dist.barrier()
    dist.destroy_process_group()


class RuntimePeerTest(unittest.TestCase):
    def run_all(self, ranks, microbatches):
        with tempfile.TemporaryDirectory() as folder:
            plans = []
            for number, (schedule, words) in enumerate(CASES):
                path = os.path.join(folder, f"{number}.csv")
                command = [PIPEWRIGHT, "print", schedule, "--ranks", str(ranks), "--microbatches", str(microbatches), *words]
                subprocess.run([*command, "--format", "csv", "-o", path], check=True)
                plan = subprocess.run([*command, "--format", "json"], check=True, capture_output=True, text=True).stdout
                plans.append((" ".join([schedule, *words]), path, placement(plan, ranks), microbatches))
            failures = mp.get_context("spawn").Queue()
            mp.spawn(run_rank, args=(ranks, folder, plans, failures), nprocs=ranks)
            found = []
            while not failures.empty():
                found.append(failures.get())
            self.assertEqual(found, [])

    def test_two_ranks(self):
        self.run_all(2, 5)

    def test_four_ranks(self):
        self.run_all(4, 9)


def placement(plan, ranks):
    """The rank of each stage."""
    header = json.loads(plan)
    stages = header["stages"]
    if header["placement"] == "v":
        return [s if s < ranks else 2 * ranks - 1 - s for s in range(stages)]
    assert header["placement"] == "loop", header["placement"]
    return [s % ranks for s in range(stages)]


if __name__ == "__main__":
    PIPEWRIGHT = sys.argv.pop(1)
    unittest.main(verbosity=2)
