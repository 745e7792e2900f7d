"""What stages of pipewright_torch.Schedule may be made of: torch.compile, checkpointing, dropout, autocast, and searched schedules.

Run by Bazel with tag `peer`. With the argument `inductor`, only what inductor compiles.
"""

import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import pipewright_torch as pw
import torch
import torch.distributed as dist
from pipelines import DTYPE, Mlp, assert_gradients, build, make_schedule, mse, placement, plain
from ranks import run_on_ranks
from torch.utils.checkpoint import checkpoint

ROWS = 2


def batch(microbatches=4):
    torch.manual_seed(7)
    x, y = (torch.randn(microbatches * ROWS, 8, dtype=DTYPE) for _ in range(2))
    return x, y, [((a,), {}, b) for a, b in zip(x.split(ROWS), y.split(ROWS))]


def step(schedule, modules, num_stages, x, y, **options):
    return schedule.step(*([x] if 0 in modules else []), target=y if num_stages - 1 in modules else None, **options)


def compiled(rank, backend):
    """I runs the whole backward of a compiled stage: without that, a split backward of one is an error."""
    x, y, split = batch()
    expected, _, _ = plain(lambda index: Mlp(), 2, mse, split)
    for name in ("1F1B", "ZB-H1"):
        for how in ("method", "function"):
            module = build(lambda index: Mlp(), rank)
            stage = module
            if how == "method":
                module.compile(backend=backend, dynamic=False)
            else:
                stage = torch.compile(module, backend=backend, dynamic=False)
            schedule = pw.Schedule(name, {rank: stage}, 4, mse)
            for _ in range(2):
                module.zero_grad()
                step(schedule, {rank: module}, 2, x, y)
            assert_gradients({rank: module}, dict(enumerate(expected)), exact=backend == "aot_eager")
            schedule.close()


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.mlp, self.reentrant, self.calls = Mlp(), reentrant, 0

    def part(self, x):
        self.calls += 1
        return self.mlp(x)

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=self.reentrant)


def checkpointed(rank):
    x, y, split = batch()
    for reentrant in (False, True):
        expected, _, _ = plain(lambda index: Mlp(), 2, mse, split)
        for name in ("1F1B", "ZB-H1"):
            modules, schedule = make_schedule(name, lambda index: Checkpointed(reentrant), 2, 4)
            # A reentrant checkpoint has gradients only if its input requires one.
            inputs = x.clone().requires_grad_() if reentrant else x
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    for _ in range(2):
                        modules[rank].zero_grad()
                        step(schedule, modules, 2, inputs, y)
                except pw.StepError as error:
                    assert reentrant and name == "ZB-H1" and "use_reentrant=True" in str(error), error
                    schedule.reset()
                else:
                    assert not (reentrant and name == "ZB-H1")
                    found = {rank: modules[rank].mlp}
                    assert_gradients(found, dict(enumerate(expected)), exact=True)
            notices = [warning for warning in caught if "recomputes twice" in str(warning.message)]
            twice = not reentrant and modules[rank].calls > 2 * 2 * 4
            assert twice == (name == "ZB-H1" and not reentrant), (name, modules[rank].calls)
            assert len(notices) == twice, (name, [str(notice.message) for notice in notices])
            schedule.close()


class Dropout(Mlp):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.5)


def dropout_by_seed(rank):
    """Each rank draws as a plain loop over its microbatches does."""
    x, y, split = batch()
    states = {index: torch.Generator().manual_seed(50 + index).get_state() for index in range(2)}

    class Seeded(Dropout):
        def __init__(self, index):
            super().__init__()
            self.index = index

        def forward(self, x):
            with torch.random.fork_rng():
                torch.set_rng_state(states[self.index])
                x = super().forward(x)
                states[self.index] = torch.get_rng_state()
            return x

    expected, _, _ = plain(Seeded, 2, mse, split)
    modules, schedule = make_schedule("1F1B", lambda index: Dropout(), 2, 4)
    torch.manual_seed(50 + rank)
    step(schedule, modules, 2, x, y)
    assert_gradients(modules, dict(enumerate(expected)), exact=True)


def autocast(rank):
    x, y, split = batch()
    make = lambda index: Mlp()  # noqa: E731
    x, y, split = x.float(), y.float(), [((a.float(),), {}, b.float()) for (a,), _, b in split]
    expected = [build(make, index).float() for index in range(2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for (a,), _, b in split:
            out = expected[1](expected[0](a))
            assert out.dtype == torch.bfloat16
            (mse(out.float(), b) / 4).backward()
    module = build(make, rank).float()
    schedule = pw.Schedule("ZB-H1", {rank: module}, 4, lambda out, target: mse(out.float(), target))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(schedule, {rank: module}, 2, x, y)
    assert_gradients({rank: module}, dict(enumerate(expected)), exact=True)


def searched(rank, plan):
    num_stages = 2 * dist.get_world_size()
    x, y, split = batch(8)
    expected, _, _ = plain(lambda index: Mlp(), num_stages, mse, split)
    placed = placement("ZBV", dist.get_world_size(), num_stages)
    modules = {index: build(lambda index: Mlp(), index) for index in range(num_stages) if placed[index] == rank}
    schedule = pw.Schedule(plan, modules, None, mse)
    step(schedule, modules, num_stages, x, y)
    assert_gradients(modules, dict(enumerate(expected)))


def on_two_ranks(rank):
    for body in (checkpointed, dropout_by_seed, autocast):
        body(rank)
    compiled(rank, "aot_eager")


class ModulesTest(unittest.TestCase):
    def test_checkpoints_dropout_autocast_and_compile(self):
        run_on_ranks(on_two_ranks, 2, start_method="fork")

    def test_searched_schedule_on_four_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "found.plan")
            subprocess.run(["cli/pipewright", "search", "--ranks", "4", "--microbatches", "8", "--placement", "v", "--memory", "4",
                            "--budget", "2000", "-o", plan], check=True, stdout=subprocess.DEVNULL)
            run_on_ranks(searched, 4, plan, start_method="fork")


class InductorTest(unittest.TestCase):
    def test_compiled_stages(self):
        run_on_ranks(compiled, 2, "inductor", start_method="fork")


if __name__ == "__main__":
    inductor = sys.argv[1:] == ["inductor"]
    unittest.main(argv=sys.argv[:1], defaultTest="InductorTest" if inductor else "ModulesTest", verbosity=2)
