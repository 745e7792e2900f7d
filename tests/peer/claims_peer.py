"""What docs/pytorch.md and docs/python.md say about PyTorch, tried with the PyTorch under test: prints it as a table.

Run by Bazel with tag `peer`: claims_peer.py. Each claim is a function that looks, and what it sees in 2.11 and in 2.15. It
runs on Gloo ranks of its own, because some leave them broken.
"""

import os
import sys
import tempfile
import threading
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks import run_on_ranks
from stage_stub import Stage
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as peer
from torch.utils.checkpoint import checkpoint
from user_function import Scale
from versions import RULES

RANKS, MICROBATCHES, WIDTH = 2, 4, 4
SINGLE = ("GPipe", "1F1B")  # one stage per rank
V = ("ZBVZeroBubble", "DualPipeV")
MULTI = ("Interleaved1F1B", "InterleavedZeroBubble", *V)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x).tanh()


class Twice(Layer):
    """A weight is used twice on a path."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)

    def forward(self, x):
        return self.linear((x @ self.weight).tanh() @ self.weight)


class Checkpointed(Layer):
    forwards = 0

    def run(self, x):
        Checkpointed.forwards += 1
        return self.linear(x).tanh()

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False)


class Scaled(Layer):
    """Has an autograd.Function of the user's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.linear(Scale.apply(x, self.weight))


class Raises(Layer):
    raises = False

    def forward(self, x):
        if Raises.raises:
            raise ValueError("out of luck")
        return super().forward(x)


class Waits(Exception):
    """Raised by a rank whose step has not returned."""


class Refused(Exception):
    """Raised where PyTorch refuses compiled stages."""


class Run:
    """A schedule of this rank, over `group`, with one module per stage."""

    def __init__(self, name, rank, module=Layer, ranks=RANKS, group=None, wrap=lambda module: module):
        num_stages = ranks if name in SINGLE else 2 * ranks
        mine = [rank] if name in SINGLE else [rank, num_stages - 1 - rank if name in V else rank + ranks]
        torch.manual_seed(1)
        modules = [module() for _ in range(num_stages)]
        self.modules = [wrap(modules[index]) for index in mine]
        stages = [PipelineStage(module, index, num_stages, torch.device("cpu"), group=group)
                  for module, index in zip(self.modules, mine)]
        for stage in stages:
            stage._get_init_p2p_neighbors_ops = list  # a warm-up that sends to itself on a V
        microbatches = 4 * ranks if name == "DualPipeV" else MICROBATCHES
        schedule = peer.get_schedule_class(name)
        self.schedule = schedule(stages[0] if name in SINGLE else stages, microbatches, loss_fn=nn.functional.mse_loss)
        self.first, self.last = 0 in mine, num_stages - 1 in mine
        self.rows = microbatches * 2

    def call(self, function, rows=None):
        torch.manual_seed(2)
        inputs, targets = torch.randn(rows or self.rows, WIDTH), torch.randn(rows or self.rows, WIDTH)
        function(*([inputs] if self.first else []), **({"target": targets} if self.last else {}))

    def step(self, rows=None):
        self.call(self.schedule.step, rows)

    def gradients(self):
        return torch.cat([p.grad.flatten() for module in self.modules for p in module.parameters()])


def ratio(found, expected):
    return f"{(found.norm() / expected.norm()).item():.3f}"


# ---- Each returns what this rank sees, as text. An exception that it raises is its text.

def accumulates(rank, name):
    run = Run(name, rank)
    run.step()
    once = run.gradients().clone()
    run.step()
    return ratio(run.gradients(), 2 * once)


def eval_keeps_gradients(rank, name):
    run = Run(name, rank)
    run.step()
    before = run.gradients().clone()
    run.call(run.schedule.eval)
    return ratio(run.gradients(), before)


def eval_runs(rank, name):
    run = Run(name, rank)
    run.call(run.schedule.eval)
    return "runs"


def weight_used_twice(rank, name):
    run = Run(name, rank, Twice)
    run.step()
    torch.manual_seed(1)
    modules = [Twice() for _ in range(2 * RANKS)]
    torch.manual_seed(2)
    inputs, targets = torch.randn(run.rows, WIDTH), torch.randn(run.rows, WIDTH)
    nn.functional.mse_loss(nn.Sequential(*modules)(inputs), targets).backward()
    mine = [rank, 2 * RANKS - 1 - rank if name in V else rank + RANKS]
    expected = torch.cat([p.grad.flatten() for index in mine for p in modules[index].parameters()])
    return "right" if torch.allclose(run.gradients(), expected, atol=1e-6) else "wrong gradients"


def sizes_may_differ(rank, name):
    run = Run(name, rank)
    run.step(rows=run.rows - 1)
    return "runs"


def times_per_microbatch(rank, name, module, count):
    """How often a stage does in a step what `count` counts, per microbatch. The first step also infers shapes."""
    run = Run(name, rank, module)
    run.step()
    before = count()
    run.step()
    return f"{(count() - before) / len(run.modules) / (run.rows / 2):g}"


def ddp_reduces(rank, name):
    alone = [dist.new_group([one]) for one in range(RANKS)][rank]
    run = Run(name, 0, ranks=1, group=alone, wrap=nn.parallel.DistributedDataParallel)
    torch.manual_seed(10 + rank)
    inputs, targets = torch.randn(run.rows, WIDTH), torch.randn(run.rows, WIDTH)
    run.schedule.step(inputs, target=targets)
    grads = [torch.empty_like(run.gradients()) for _ in range(RANKS)]
    dist.all_gather(grads, run.gradients())
    return "reduced" if torch.equal(*grads) else "not reduced"


def compiled(rank, name):
    try:
        Run(name, rank, wrap=lambda module: torch.compile(module, backend="aot_eager")).step()
    except RuntimeError as error:
        raise Refused if "not supported with stage modules that have used torch.compile" in str(error) else error
    return "runs"


def others_wait(rank, mine, step):
    """The step fails on rank `mine`, whose process lives on; the other rank is still in it three seconds later."""
    if rank == mine:
        try:
            step()
        except Exception as error:
            return type(error).__name__
    waiting = threading.Thread(target=step, daemon=True)
    waiting.start()
    waiting.join(3)
    raise Waits if waiting.is_alive() else AssertionError("the step has returned")


def an_exception(rank):
    run = Run("1F1B", rank, Raises)
    run.step()
    Raises.raises = rank == 1
    return others_wait(rank, 1, run.step)


def a_wrong_batch(rank):
    run = Run("1F1B", rank)
    run.step()
    return others_wait(rank, 0, lambda: run.step(rows=run.rows if rank else 2))


def in_one_process(look):
    return lambda rank: look() if rank == 0 else None


def lowered(name, ranks, microbatches, **options):
    per_rank = 1 if name in SINGLE else 2
    local = [0] if per_rank == 1 else [0, 2 * ranks - 1] if name in V else [0, ranks]
    stages = [Stage(index, per_rank * ranks, ranks) for index in local]
    return peer.get_schedule_class(name)(stages, microbatches, loss_fn=lambda a, b: a, **options)


def takes(option):
    """Whether a schedule takes the option, which is in no signature."""
    try:
        lowered("Interleaved1F1B", 2, 4, **{option: True if option.startswith("defer") else 2 if "max" in option else "full"})
        return "yes"
    except TypeError:
        return "no"


def exported_1f1b():
    order = peer.Schedule1F1B(Stage(1, 2, 2), 4)._get_pipeline_order()
    return ",".join("" if action is None else str(action) for action in order[1][:4])


def accepts(text):
    """Whether PyTorch loads a program that cannot run."""
    stage = Stage(0, 2, 2)
    schedule = peer._PipelineScheduleRuntime([stage], 2, loss_fn=lambda a, b: a)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.csv")
        with open(path, "w") as file:
            file.write(text)
        try:
            schedule._load_csv(path, "compute_comms")
            return "accepted"
        except (ValueError, AssertionError) as error:
            return type(error).__name__


def program(row_0, row_1):
    """Rows of one stage each, with the WAITs that 2.15 wants at their ends."""
    rows = []
    for row in (row_0, row_1):
        waits = [cell.replace("SEND", "WAIT_SEND") for cell in row.split(",") if "SEND" in cell]
        rows.append(",".join([row, *(waits if RULES == "2.15" else [])]))
    return "\n".join(rows) + "\n"


FIRST = "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1"
LAST = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
BROKEN = [  # what is wrong, the rows, and the rule that refuses them here
    ("a RECV that is missing", FIRST, LAST.replace("1RECV_F1,", ""), "PW032"),
    ("RECVs in another order than their SENDs", FIRST, LAST.replace("1RECV_F1,", "").replace("1RECV_F0", "1RECV_F1,1RECV_F0"), "PW041"),
    ("a forward twice", FIRST + ",0F1", LAST, "PW033"),
    ("a deadlock", "0F0,0RECV_B0,0B0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B1", LAST, "PW042"),
]


def simulates_unshard():
    schedule = lowered("Interleaved1F1B", 2, 4)
    try:
        peer._simulate_comms_compute(schedule.pipeline_order_with_comms, lambda stage: stage % 2, 4)
        return "runs"
    except Exception as error:
        return type(error).__name__


def parity_keeps_order(name):
    """Whether each RECV of `defer_pp_recv` is posted in the order of its SENDs, 4 ranks and 8 microbatches."""
    schedule = lowered(name, 4, 8, defer_pp_recv=True)
    rank_of = schedule.stage_index_to_group_rank
    sends, receives = {}, {}
    for rank, row in schedule.pipeline_order_with_comms.items():
        for action in row:
            kind, stage = action.computation_type.name, action.stage_index
            if kind.startswith("SEND"):
                other = stage + (1 if kind.endswith("F") else -1)
                sends.setdefault((rank, rank_of[other]), []).append((kind[-1], other, action.microbatch_index))
            if kind.startswith("RECV"):
                other = stage - (1 if kind.endswith("F") else -1)
                receives.setdefault((rank_of[other], rank), []).append((kind[-1], stage, action.microbatch_index))
    return "in order" if sends == receives else "swapped"


def per_edge():
    config = getattr(dist, "config", None)
    return str(getattr(config, "pipeline_per_edge_p2p", "no such option"))


# The claim, what looks, and how what it sees in 2.11 and in 2.15 begins. The last column is ours.
CLAIMS = []
for name in (*SINGLE, *MULTI[:3]):
    CLAIMS.append((f"gradients of two steps, over their sum ({name})", lambda rank, name=name: accumulates(rank, name),
                   "0.625", "0.625", "1"))
for name in (*SINGLE, *MULTI[:2]):
    CLAIMS.append((f"gradients after an eval, over those before ({name})", lambda rank, name=name: eval_keeps_gradients(rank, name),
                   "0.250", "0.250" if name in SINGLE else "1.000", "1"))
for name in V:
    CLAIMS.append((f"eval ({name})", lambda rank, name=name: eval_runs(rank, name), "AssertionError", "AssertionError", "runs"))
for name in MULTI[1:]:
    CLAIMS.append((f"a weight used twice ({name})", lambda rank, name=name: weight_used_twice(rank, name), "wrong gradients",
                   "right", "right"))
for name in MULTI[1:3]:
    CLAIMS.append((f"gradients over two DDP replicas ({name})", lambda rank, name=name: ddp_reduces(rank, name), "not reduced",
                   "not reduced", "reduced"))
for name in MULTI[1:]:
    few_split = name == "DualPipeV"
    for what, module, count, at_least in (
            ("forwards of a checkpointed stage", Checkpointed, lambda: Checkpointed.forwards, "2.0625" if few_split else "2.5"),
            ("backwards of a user's autograd.Function", Scaled, lambda: Scale.backwards, "1.0625" if few_split else "1.5")):
        CLAIMS.append((f"{what} per microbatch ({name})",
                       lambda rank, name=name, module=module, count=count: times_per_microbatch(rank, name, module, count),
                       at_least, at_least, at_least[0]))
for name in MULTI[1:]:
    CLAIMS.append((f"`torch.compile` ({name})", lambda rank, name=name: compiled(rank, name), "Refused", "Refused", "runs"))
CLAIMS += [
    ("an exception on the last rank", an_exception, "RuntimeError; Waits", "RuntimeError; Waits", "StepErrors"),
    ("a batch with fewer rows than microbatches", a_wrong_batch, "ValueError; Waits", "ValueError; Waits", "BatchErrors"),
    ("microbatches of two sizes (1F1B)", lambda rank: sizes_may_differ(rank, "1F1B"), "", "RuntimeError", "run"),
    ("the exported 1F1B, last rank", in_one_process(exported_1f1b), "1F1,1B0", "1F1,1B0", "1F0,1B0,1F1,1B1"),
    ("the simulator, for a program with UNSHARD", in_one_process(simulates_unshard), "ValueError", "ValueError", "runs"),
    ("`1F0xyz`", in_one_process(lambda: str(peer._Action.from_str("1F0xyz"))), "1F0", "1F0", "PW006"),
    *((f"a program with {what}", in_one_process(lambda rows=rows: accepts(program(*rows))), "accepted", "accepted", rule)
      for what, *rows, rule in BROKEN),
    ("RECVs of `defer_pp_recv`, 4 ranks (Interleaved1F1B)", in_one_process(lambda: parity_keeps_order("Interleaved1F1B")),
     "TypeError", "in order", "in order"),
    ("RECVs of `defer_pp_recv`, 4 ranks (ZBVZeroBubble)", in_one_process(lambda: parity_keeps_order("ZBVZeroBubble")),
     "TypeError", "swapped", "PW041"),
    *((f"option `{option}`", in_one_process(lambda option=option: takes(option)), "no", "yes", ours) for option, ours in (
        ("max_active_stages", "--residency"), ("unshard_lookahead", "--lookahead"), ("defer_pp_recv", "--receives"),
        ("defer_reduce_grad_wait", "--defer-reduce-grad-wait"), ("max_outstanding_sends", "--max-outstanding-sends"))),
    ("one communicator per ordered pair of ranks", in_one_process(per_edge), "no such option", "False", "the default"),
]


def look_from(rank, first, seen):
    """Puts (claim, rank, what it sees) for the claims from `first` on, until one of them fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # PyTorch logs the whole schedule
    for number in range(first, len(CLAIMS)):
        try:
            seen.put((number, rank, CLAIMS[number][1](rank)))
        except Exception as error:
            seen.put((number, rank, type(error).__name__))
            os._exit(1)  # the other ranks would wait for this one
        dist.barrier()


def look():
    """What the ranks see, by claim: once if they see the same."""
    found = [[] for _ in CLAIMS]
    first = 0
    while first < len(CLAIMS):
        seen = mp.get_context("spawn").SimpleQueue()
        try:
            run_on_ranks(look_from, RANKS, first, seen)
            last = len(CLAIMS) - 1
        except Exception:
            last = first
        while not seen.empty():
            number, _, value = seen.get()
            last = max(last, number)
            if value is not None and value not in found[number]:
                found[number].append(value)
        first = last + 1
    return ["; ".join(sorted(values)) for values in found]


class ClaimsPeerTest(unittest.TestCase):
    def test_claims(self):
        print(f"| in PyTorch | {torch.__version__} | here |\n|---|---|---|")
        for found, (text, _, in_211, in_215, here) in zip(look(), CLAIMS):
            with self.subTest(text):
                print(f"| {text} | {found} | {here} |", flush=True)
                expected = in_211 if RULES == "2.11" else in_215
                self.assertEqual(found[:len(expected)], expected)


if __name__ == "__main__":
    unittest.main()
