"""Compares tensor parallelism with PyTorch's parallelize_module, over Gloo with 2 processes.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_tp

Both sides run forward and backward of a stack of MLPs and of transformer blocks, whose layers are split column-wise and
then row-wise, with one intra-op thread per rank. Prints, for alternating pairs, the median step time of each side and their
ratio (PyTorch / pipewright; above 1, pipewright is faster), then the median ratio. PyTorch's processes start once and wait
while ours run.

Beside it, the overhead per collective of each side: the time of a step less that of the same compute in modules of the parts'
sizes without communication, which runs in the same processes just before or after it, over the collectives of a step: two per
MLP, or two in forward and two in backward of a block. Printed as the median of all steps with quartiles. Differences of times
that other work on the machine disturbs have both signs: a first quartile below zero tells that the overhead is not above the
noise. Fails only if one side fails; no speed is required.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

PIPEWRIGHT, OURS = sys.argv[1:3] if len(sys.argv) > 2 else (None, None)
RANKS, HEAD, TOKENS, BATCH, PAIRS = 2, 16, 64, 4, 5
CASES = [("mlp", 32, 8, 200), ("mlp", 256, 8, 30), ("block", 32, 4, 200), ("block", 256, 4, 30)]  # kind, dimension, layers, steps


class Mlp(nn.Module):
    def __init__(self, dim, parts):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim // parts), nn.Linear(4 * dim // parts, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, dim, parts):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim // parts) for _ in range(3))
        self.wo = nn.Linear(dim // parts, dim)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, parts):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = Attention(dim, parts), Mlp(dim, parts)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def stack(kind, dim, layers, parts):
    return nn.Sequential(*[{"mlp": Mlp, "block": Block}[kind](dim, parts) for _ in range(layers)])


def plan(kind):
    if kind == "mlp":
        return {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return {
        "*.attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "*.attention.w[qkv]": ColwiseParallel(),
        "*.attention.wo": RowwiseParallel(),
        "*.mlp.up": ColwiseParallel(),
        "*.mlp.down": RowwiseParallel(),
    }


def collectives(kind, layers):
    """Of a step. The input of the first MLP needs no gradient, so there backward has none."""
    return 2 * layers - 1 if kind == "mlp" else 4 * layers


def train(model, inputs):
    model.zero_grad()
    model(inputs).sum().backward()


def step_us(model, inputs):
    """Of one step, which the ranks begin together."""
    dist.barrier()
    start = time.perf_counter()
    train(model, inputs)
    return 1e6 * (time.perf_counter() - start)


def measure(mesh, kind, dim, layers, steps):
    """The median time of a step, and the quartiles of its difference to compute alone."""
    model, part = stack(kind, dim, layers, 1), stack(kind, dim, layers, RANKS)
    parallelize_module(model, mesh, plan(kind))
    inputs = torch.randn(BATCH, TOKENS, dim)
    times, differences = [], []
    for step in range(steps // 2 + steps):
        if step % 2:
            without, with_communication = step_us(part, inputs), step_us(model, inputs)
        else:
            with_communication, without = step_us(model, inputs), step_us(part, inputs)
        if step >= steps // 2:
            times.append(with_communication)
            differences.append(with_communication - without)
    return statistics.median(times), statistics.quantiles(differences, n=4)


def check_count(mesh, kind, layers):
    """On a model of its own, because counting adds hooks."""
    model = stack(kind, 32, layers, 1)
    parallelize_module(model, mesh, plan(kind))
    with CommDebugMode() as counted, warnings.catch_warnings(action="ignore"):
        train(model, torch.randn(BATCH, TOKENS, 32))
    assert counted.get_total_counts() == collectives(kind, layers), counted.get_comm_counts()


def run_rank(rank, folder, cases, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    while (case := cases[rank].get()) is not None:
        kind, _, layers, _ = case
        check_count(mesh, kind, layers)
        result = measure(mesh, *case)
        if rank == 0:
            results.put(result)
    dist.destroy_process_group()


def ours(kind, dim, layers, steps):
    done = subprocess.run([PIPEWRIGHT, "launch", "-n", str(RANKS), "--", OURS, kind, str(dim), str(layers), str(steps)],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    words = done.stdout.split()
    overhead = words.index("overhead_us")
    return float(words[words.index("step_us") + 1]), [float(word) for word in words[overhead + 1:overhead + 4]]


def per_collective(quartiles, count):
    first, median, third = (value / count for value in quartiles)
    return f"{median:.0f} us ({first:.0f} to {third:.0f})"


def compare(theirs):
    for case in CASES:
        kind, dim, layers, _ = case
        count = collectives(kind, layers)
        ratios = []
        for pair in range(PAIRS):
            (slow, their_overhead), (fast, our_overhead) = theirs(case), ours(*case)
            ratios.append(slow / fast)
            print(f"pair {pair}: PyTorch {slow / 1000:.2f} ms, ours {fast / 1000:.2f} ms, ratio {slow / fast:.2f}; overhead per "
                  f"collective: PyTorch {per_collective(their_overhead, count)}, ours {per_collective(our_overhead, count)}",
                  flush=True)
        print(f"{layers} x {kind} of dimension {dim}: median ratio {statistics.median(ratios):.2f}", flush=True)


def main():
    context = mp.get_context("spawn")
    cases, results = [context.SimpleQueue() for _ in range(RANKS)], context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(run_rank, args=(folder, cases, results), nprocs=RANKS, join=False)

        def theirs(case):
            for queue in cases:
                queue.put(case)
            while results.empty():  # join() raises the error of a rank that has failed
                ranks.join(timeout=0.1)
            return results.get()

        compare(theirs)
        for queue in cases:
            queue.put(None)
        while not ranks.join():
            pass


if __name__ == "__main__":
    main()
