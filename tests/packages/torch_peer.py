"""PyTorch's runtime trains a model on our schedules, handed over by pipewright.torch: tests/packages/run --torch.

Each rank is a Gloo process. Losses and gradients of every stage must equal those of the model without a pipeline.
"""

import unittest

import pipewright as pw
import pipewright.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks import run_on_ranks
from torch.distributed.pipelining import PipelineStage
from versions import RULES

WIDTH, ROWS, RANKS, MICROBATCHES = 8, 3, 2, 6


def schedules():
    """Those that PyTorch has no generator for, searched ones among them, and one of its own."""
    shape = {"ranks": RANKS, "microbatches": MICROBATCHES}
    yield pw.make("ZB-H2", **shape)
    yield pw.make("V-Half", **shape)
    yield pw.make("1F1B", **shape).lower(receives="latest", channels="rank", torch=RULES)
    yield pw.search(**shape, placement="v", memory=1.5, backward_weight=0.7, comm=0.1, budget="small").schedule
    yield pw.search(**shape, placement="loop", stages=4, memory=2, budget="small").schedule


def make_stage(index):
    torch.manual_seed(100 + index)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def batch():
    torch.manual_seed(7)
    return torch.randn(MICROBATCHES * ROWS, WIDTH), torch.randn(MICROBATCHES * ROWS, WIDTH)


def unpipelined(num_stages):
    stages = [make_stage(index) for index in range(num_stages)]
    inputs, targets = batch()
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(inputs), targets)
    loss.backward()
    return loss.detach(), [[p.grad for p in stage.parameters()] for stage in stages]


def run_rank(rank, compared):
    for program in schedules():
        of_stage = program.stage_ranks
        loss, gradients = unpipelined(program.stages)
        mine = [index for index, one in enumerate(of_stage) if one == rank]
        modules = {index: make_stage(index) for index in mine}
        stages = [PipelineStage(modules[index], index, program.stages, torch.device("cpu")) for index in mine]
        schedule = pipewright.torch.runtime(program, stages, loss_fn=torch.nn.functional.mse_loss)
        inputs, targets = batch()
        losses, last = [], program.stages - 1 in mine
        schedule.step(*([inputs] if 0 in mine else []), **({"target": targets, "losses": losses} if last else {}))
        if last:
            torch.testing.assert_close(torch.stack(losses).mean(), loss, rtol=1e-5, atol=1e-6)
        for index in mine:
            for parameter, gradient in zip(modules[index].parameters(), gradients[index]):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
                compared.put(program.name)
        dist.barrier()


class TorchTest(unittest.TestCase):
    def test_gradients(self):
        compared = mp.get_context("spawn").SimpleQueue()
        run_on_ranks(run_rank, RANKS, compared)
        count = 0
        while not compared.empty():
            compared.get()
            count += 1
        self.assertEqual(count, 4 * (2 + 4 + 2 + 4 + 4))  # parameters of all stages

    def test_wrong_stages(self):
        with self.assertRaisesRegex(ValueError, r"expected stages \[0\] of 2 on rank 0, got stage 1 of 2"):
            class Stage:
                group_rank, stage_index, num_stages = 0, 1, 2
            pipewright.torch.runtime(pw.make("1F1B", ranks=2, microbatches=2), [Stage()])

    # PyTorch 2.15 awaits each SEND, 2.11 to 2.14 have no action for it.
    def test_program_for_another_torch(self):
        other = {"2.11": "2.15", "2.15": "2.11"}[RULES]
        program = pw.make("1F1B", ranks=2, microbatches=2).lower(torch=other)
        with self.assertRaisesRegex(ValueError, rf'for the installed torch {torch.__version__}.*torch="{RULES}"'.replace("+", r"\+")):
            pipewright.torch.runtime(program, [])

    # What deadlocks on one communicator per rank is refused before PyTorch sees it.
    def test_deadlock_is_refused(self):
        late = pw.make("1F1B", ranks=2, microbatches=2).lower(receives="latest", channels="edge", torch=RULES)
        with self.assertRaisesRegex(pw.ScheduleError, "deadlock"):
            pipewright.torch.runtime(late, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
