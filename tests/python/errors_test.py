"""What a failure of pipewright_torch.Schedule looks like: the same first cause on every rank, and training that goes on.

Run by Bazel with tag `peer`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import pipewright_torch as pw
import torch
import torch.distributed as dist
from pipelines import DTYPE, Mlp, assert_gradients, build, make_schedule, mse, plain
from ranks import run_on_ranks


class Bad(torch.autograd.Function):
    armed = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Bad.armed:
            raise KeyError("no such gradient")
        return grad


class Faulty(torch.nn.Module):
    where = None

    def __init__(self, index):
        super().__init__()
        self.index = index
        self.mlp = Mlp()

    def forward(self, x):
        if Faulty.where == "forward" and self.index == 1:
            raise ValueError("out of luck")
        if Faulty.where == "operator" and self.index == 1:
            torch.ones(2) @ torch.ones(3)
        if Faulty.where == "output" and self.index == 0:
            return "no tensor"
        if Faulty.where == "exit" and self.index == 1:
            sys.exit(7)
        x = self.mlp(x)
        if self.index == 1 and Faulty.where == "hook":
            x.register_hook(lambda grad: 1 / 0)
        return Bad.apply(x) if self.index == 1 and Faulty.where in ("backward", None) else x


def faulty_loss(output, target):
    if Faulty.where == "loss":
        raise ArithmeticError("in the loss")
    if Faulty.where == "loss returns":
        return 3.0
    return mse(Bad.apply(output) if Faulty.where == "loss backward" else output, target)


# Where it fails: the type of the exception, the rank, and what every rank reads.
PLACES = {
    "forward": (ValueError, 1, "`1F0`: ValueError: out of luck (errors_test.py:"),
    "operator": (RuntimeError, 1, "`1F0`: RuntimeError: inconsistent tensor size"),
    "output": (TypeError, 0, "`0F0`: TypeError: outputs of a stage: expected tensors and None, got str"),
    "backward": (KeyError, 1, "KeyError: 'no such gradient' (errors_test.py:"),
    "hook": (ZeroDivisionError, 1, "ZeroDivisionError: division by zero (errors_test.py:"),
    "loss": (ArithmeticError, 1, "`1F0`: ArithmeticError: in the loss (errors_test.py:"),
    "loss returns": (TypeError, 1, "`1F0`: TypeError: loss_fn: expected to return a tensor, got float"),
    "loss backward": (KeyError, 1, "KeyError: 'no such gradient' (errors_test.py:"),
    "exit": (SystemExit, 1, "`1F0`: SystemExit: 7 (errors_test.py:"),
}


def exceptions(rank):
    torch.manual_seed(7)
    x, y = torch.randn(8, 8, dtype=DTYPE), torch.randn(8, 8, dtype=DTYPE)
    expected, _, _ = plain(Faulty, 2, faulty_loss, [((a,), {}, b) for a, b in zip(x.split(2), y.split(2))])
    for name in ("1F1B", "ZB-H1"):
        modules, schedule = make_schedule(name, Faulty, 2, 4, faulty_loss)
        run = lambda: schedule.step(*([x] if rank == 0 else []), target=y)  # noqa: E731
        for step, (where, (kind, failing, text)) in enumerate(PLACES.items()):
            Faulty.where, Bad.armed = where, True
            try:
                run()
                schedule.confirm()
            except pw.StepError as error:
                assert not isinstance(error, (pw.BatchError, pw.HangError))
                assert str(error).startswith(f"rank {failing}, step {step}, action ") and text in str(error).split("\n")[0], (where, str(error))
                assert (type(error.__cause__) is kind) == (rank == failing), (where, error.__cause__)
                assert kind is not SystemExit or rank != failing
                if rank == failing:
                    # C++ code raises that of a loss that is no tensor.
                    assert error.__cause__.__traceback__ is not None or where == "loss returns"
            except SystemExit as error:
                assert where == "exit" and rank == 1 and error.code == 7
            else:
                raise AssertionError(f"{where}: expected an error")
            Faulty.where, Bad.armed = None, False
            try:
                run()
            except pw.StepError as error:
                assert "no step can run after a failure" in str(error), error
            assert schedule.reset() == step
            modules[rank].zero_grad()
            run()  # training goes on
            schedule.confirm()
            assert_gradients(modules, dict(enumerate(expected)))
        schedule.close()


def a_hang_is_reported(rank):
    x, y = torch.randn(8, 8, dtype=DTYPE), torch.randn(8, 8, dtype=DTYPE)
    slow = threading.Event()

    class Slow(Mlp):
        def forward(self, x):
            if rank == 1:
                slow.wait(4)
            return super().forward(x)

    _, schedule = make_schedule("1F1B", lambda index: Slow(), 2, 4, timeout=1.0)
    try:
        schedule.step(*([x] if rank == 0 else []), target=y)
    except pw.HangError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("expected a HangError")
    schedule.reset()


def interrupted(rank):
    """Ctrl-C on a rank that waits in C++, and the other rank."""
    x, y = torch.randn(8, 8, dtype=DTYPE), torch.randn(8, 8, dtype=DTYPE)
    busy = threading.Event()

    class Slow(Mlp):
        def forward(self, x):
            if rank == 1 and not busy.is_set():
                busy.wait(60)
            return super().forward(x)

    modules, schedule = make_schedule("1F1B", lambda index: Slow(), 2, 4)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if rank == 0:
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    else:
        threading.Timer(2, busy.set).start()
    start = time.monotonic()
    try:
        schedule.step(*([x] if rank == 0 else []), target=y)
    except KeyboardInterrupt as error:
        assert rank == 0 and isinstance(error.__cause__, pw.StepError)
    except pw.StepError as error:
        assert rank == 1 and str(error).startswith("rank 0, step 0, action ") and "KeyboardInterrupt" in str(error), error
    else:
        raise AssertionError("expected an interrupt")
    assert time.monotonic() - start < 40
    schedule.reset()
    modules[rank].zero_grad()
    schedule.step(*([x] if rank == 0 else []), target=y)


def on_two_ranks(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # multiprocessing ignores it
    for body in (exceptions, a_hang_is_reported, interrupted):
        if rank == 0:
            print(body.__name__, flush=True)
        body(rank)


PROGRAM = """
import os, signal, sys, threading
import torch, torch.distributed as dist
import pipewright_torch as pw

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
how = sys.argv[2]

class Stage(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        Stage.calls += 1
        if how == "killed" and rank == 1 and Stage.calls > 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises" and rank == 1 and Stage.calls > 4:
            raise ValueError("out of luck")
        return super().forward(x)

schedule = pw.Schedule("1F1B", {rank: Stage(4, 4)}, 4, torch.nn.functional.mse_loss)
for _ in range(2):
    schedule.step(*([torch.ones(8, 4)] if rank == 0 else []), target=torch.ones(8, 4))
if how == "destroys":
    dist.destroy_process_group()
print("done")
"""


class ErrorsTest(unittest.TestCase):
    def test_exceptions_hangs_and_interrupts(self):
        run_on_ranks(on_two_ranks, 2)

    def ends(self, how):
        """Exit codes, and what the two processes have printed to stderr."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, os.path.join(folder, "store"), how], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
            outputs = [rank.communicate(timeout=120) for rank in ranks]
        return [rank.returncode for rank in ranks], [stderr for _, stderr in outputs]

    def test_processes_end_quietly(self):
        for how in ("returns", "destroys"):
            codes, texts = self.ends(how)
            self.assertEqual(codes, [0, 0], texts)
            self.assertEqual([[line for line in text.split("\n") if line] for text in texts], [[], []], how)

    def test_an_error_that_nobody_catches_ends_both(self):
        codes, texts = self.ends("raises")
        self.assertEqual(codes, [1, 1], texts)
        for text in texts:
            self.assertRegex(text, r"pipewright_torch.StepError: rank 1, step 1, action \d+ `1F0`: ValueError: out of luck")
        self.assertIn("The above exception was the direct cause", texts[1])

    def test_a_killed_rank_is_named(self):
        codes, texts = self.ends("killed")
        self.assertEqual(codes, [1, -signal.SIGKILL], texts)
        self.assertRegex(texts[0], r"pipewright_torch.StepError: rank 0, step 1, action(.|\n)*\n\[rank0\]:   rank 1: host .*: has ended")


if __name__ == "__main__":
    unittest.main(verbosity=2)
