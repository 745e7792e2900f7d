"""What a failure of pipewright_torch.Schedule looks like: the same first cause on every rank, and training that goes on.

Run by Bazel with tag `peer`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipelines import DTYPE, Mlp, assert_gradients, build, make_schedule, mse, plain
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


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
                slow.wait(2)
            return super().forward(x)

    _, schedule = make_schedule("1F1B", lambda index: Slow(), 2, 4, timeout=0.5)
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
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    else:
        threading.Timer(1, busy.set).start()
    try:
        schedule.step(*([x] if rank == 0 else []), target=y)
    except KeyboardInterrupt as error:
        assert rank == 0 and isinstance(error.__cause__, pw.StepError)
    except pw.StepError as error:
        assert rank == 1 and str(error).startswith("rank 0, step 0, action ") and "KeyboardInterrupt" in str(error), error
    else:
        raise AssertionError("expected an interrupt")
    schedule.reset()
    modules[rank].zero_grad()
    schedule.step(*([x] if rank == 0 else []), target=y)


def on_two_ranks(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # multiprocessing ignores it
    for body in (exceptions, a_hang_is_reported, interrupted):
        if rank == 0:
            print(body.__name__, flush=True)
        body(rank)


# ---- kills


class Killed(torch.autograd.Function):
    """Its backward runs in I."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Mortal.may_die("I")
        return grad


class Mortal(torch.nn.Module):
    """A stage, and its own data parallelism, of a rank that is killed at its second action of a kind."""

    dies_at, calls = None, 0

    @staticmethod
    def may_die(kind):
        if Mortal.dies_at == kind:
            Mortal.calls += 1
            if Mortal.calls == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    def __init__(self):
        super().__init__()
        self.mlp = Mlp()
        self.mlp.first.weight.register_post_accumulate_grad_hook(lambda parameter: Mortal.may_die("W"))
        self.pipeline_data_parallel = _Driver()

    def forward(self, x):
        Mortal.may_die("F")
        return self.mlp(Killed.apply(x))


class _Driver:
    group, frees_parameters = None, True

    def unshard(self):
        Mortal.may_die("UNSHARD")

    def reduce_grad(self):
        Mortal.may_die("REDUCE_GRAD")


# By the kind of action, the rank that is killed. Rank 0 hosts the store, and dies while its first SEND may be in flight.
KILLS = {"F": 1, "I": 1, "W": 1, "UNSHARD": 1, "REDUCE_GRAD": 1, "SEND": 0}


def a_rank_is_killed(rank, kind, pipe=None):
    """With a pipe the rank has a child, like a data loader's, that lives until nobody else can write to the pipe."""
    torch.manual_seed(7)
    x, y = torch.randn(8, 8, dtype=DTYPE), torch.randn(8, 8, dtype=DTYPE)
    modules, schedule = make_schedule("ZB-H1", lambda index: Mortal(), 2, 4)
    if pipe and rank == KILLS[kind] and os.fork() == 0:
        os.close(pipe[1])
        os.read(pipe[0], 1)
        os._exit(0)
    Mortal.dies_at = {"SEND": "F"}.get(kind, kind) if rank == KILLS[kind] else None
    for _ in range(3):  # stages are unsharded and reduced once per step
        schedule.step(*([x] if rank == 0 else []), target=y)


def a_sharded_rank_is_killed(rank, kind):
    """Rank 3 of 2 x 2, before a collective of FSDP2 that rank 2 waits for."""
    from pipewright_torch._data_parallel import Fsdp
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    index = rank // 2
    if rank == 3:
        method = getattr(Fsdp, kind)
        setattr(Fsdp, kind, lambda self: (Mortal.may_die(kind), method(self)))
        Mortal.dies_at = kind
    module = fully_shard(build(lambda index: Mlp(), index), mesh=mesh["dp"])
    schedule = pw.Schedule("1F1B", {index: module}, 4, mse, group=mesh["pp"])
    x, y = torch.randn(8, 8, dtype=DTYPE), torch.randn(8, 8, dtype=DTYPE)
    for _ in range(3):
        schedule.step(*([x] if index == 0 else []), target=y)


def run_and_note(rank, ranks, backend, folder, work, arguments):
    """Writes what a rank raises to a file."""
    torch.set_num_threads(1)
    pw.register_backend()
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        work(rank, *arguments)
    except pw.StepError as error:
        with open(f"{folder}/{rank}", "w") as file:
            file.write(str(error))
    os._exit(0)


def errors_of(work, ranks, backend, *arguments):
    """Returns the text of each rank's StepError; "" of a rank that was killed."""
    with tempfile.TemporaryDirectory() as folder:
        processes = mp.start_processes(run_and_note, (ranks, backend, folder, work, arguments), nprocs=ranks, join=False,
                                       start_method="fork").processes
        for process in processes:
            process.join(60)  # nobody waits for the time limits, which are ten minutes
        codes = [process.exitcode for process in processes]
        for process in processes:
            if process.exitcode is None:
                process.kill()
        texts = []
        for rank, code in enumerate(codes):
            with contextlib.suppress(FileNotFoundError), open(f"{folder}/{rank}") as file:
                texts.append(file.read())
            if len(texts) == rank:
                texts.append("" if code == -signal.SIGKILL else f"no error, and code {code}")
        return texts


# Each process is a fork of one that has imported torch, and ends as any Python program, by finalizing the interpreter.
PROGRAM = """
import os, sys
import torch, torch.distributed as dist
import pipewright_torch as pw

class Stage(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        Stage.calls += 1
        if how == "raises" and rank == 1 and Stage.calls > 4:
            raise ValueError("out of luck")
        return super().forward(x)

folder, how, rank = sys.argv[1], None, None
children = []
for how in sys.argv[2:]:
    for rank in range(2):
        child = os.fork()
        if child == 0:
            break
        children.append((how, rank, child))
    if child == 0:
        break
if child:
    for how, rank, child in children:
        _, status = os.waitpid(child, 0)
        print(how, rank, os.waitstatus_to_exitcode(status))
else:
    error = os.open(f"{folder}/{how}.{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(error, 2)
    if how.startswith("pipewright"):
        pw.register_backend()
    dist.init_process_group("pipewright" if how.startswith("pipewright") else "gloo", init_method=f"file://{folder}/{how}.store",
                            rank=rank, world_size=2)
    schedule = pw.Schedule("1F1B", {rank: Stage(4, 4)}, 4, torch.nn.functional.mse_loss)
    for _ in range(2):
        schedule.step(*([torch.ones(8, 4)] if rank == 0 else []), target=torch.ones(8, 4))
    if how.endswith("destroys"):
        dist.destroy_process_group()
"""


class ErrorsTest(unittest.TestCase):
    def test_exceptions_hangs_and_interrupts(self):
        run_on_ranks(on_two_ranks, 2, start_method="fork")

    def test_a_killed_rank_is_named(self):
        for kind, dead in KILLS.items():
            texts = errors_of(a_rank_is_killed, 2, "gloo", kind)
            self.assertEqual(texts[dead], "", kind)
            lost = r"\n  rank 1: host .*: has ended" if dead else "rank 0, which hosts the store, has ended"
            self.assertRegex(texts[1 - dead], lost, kind)

    def test_a_child_does_not_stand_in_for_a_killed_rank(self):
        pipe = os.pipe()
        try:
            texts = errors_of(a_rank_is_killed, 2, "gloo", "SEND", pipe)
        finally:
            for end in pipe:
                os.close(end)
        self.assertEqual(texts[0], "")
        self.assertRegex(texts[1], "rank 0, which hosts the store, has ended")

    def test_a_killed_rank_ends_collectives(self):
        for method in ("unshard", "reduce_grad"):
            texts = errors_of(a_sharded_rank_is_killed, 4, "pipewright", method)
            self.assertEqual(texts[3], "", method)
            for text in texts[:3]:
                self.assertRegex(text, r"\n  rank 3: host .*: has ended", method)

    def test_ends_of_processes(self):
        """A process prints nothing after success, with or without destroy_process_group(), and the cause after an uncaught error."""
        quiet = ("returns", "destroys", "pipewright returns", "pipewright destroys")
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([sys.executable, "-c", PROGRAM, folder, *quiet, "raises"], stdout=subprocess.PIPE, text=True, timeout=120)
            texts = {}
            for name in os.listdir(folder):
                if not name.endswith("store"):
                    with open(os.path.join(folder, name)) as file:
                        texts[name] = file.read()
        self.assertEqual(run.stdout.split("\n")[:-1], [f"{how} {rank} {int(how == 'raises')}" for how in (*quiet, "raises") for rank in (0, 1)],
                         texts)
        for how in quiet:
            self.assertEqual([texts[f"{how}.{rank}"] for rank in (0, 1)], ["", ""], how)
        for rank in (0, 1):
            self.assertRegex(texts[f"raises.{rank}"], r"pipewright_torch.StepError: rank 1, step 1, action \d+ `1F0`: ValueError: out of luck")
        self.assertIn("The above exception was the direct cause", texts["raises.1"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
