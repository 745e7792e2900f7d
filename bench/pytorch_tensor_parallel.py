"""Compares tensor parallelism with PyTorch's parallelize_module, over Gloo with 2 processes.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_tp

Both sides run forward and backward of a stack of MLPs and of transformer blocks, whose layers are split column-wise and
then row-wise, with one intra-op thread per rank. Prints, for alternating pairs, the median step time of each side and their
ratio (PyTorch / pipewright; above 1, pipewright is faster), then the median ratio. Beside it, the overhead per collective of
each side: the median difference between a step and the same compute in modules of the parts' sizes without communication, which
runs after each step, over the collectives of a step: one per MLP or half of a block in forward and one per column-parallel layer
in backward. Fails only if one side fails; no speed is required.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PIPEWRIGHT, OURS = sys.argv[1:3] if len(sys.argv) > 2 else (None, None)
RANKS, HEAD, TOKENS, BATCH, STEPS, PAIRS = 2, 16, 64, 4, 20, 3
CASES = [("mlp", 32, 8), ("mlp", 256, 8), ("block", 32, 4), ("block", 256, 4)]  # kind, dimension, layers


class Mlp(nn.Module):
    def __init__(self, dim, parts):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim // parts), nn.Linear(4 * dim // parts, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim, parts):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim // parts) for _ in range(3))
        self.wo = nn.Linear(dim // parts, dim)
        self.mlp = Mlp(dim, parts)

    def forward(self, x):
        normed = self.attention_norm(x)
        q, k, v = (w(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        x = x + self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


def stack(kind, dim, layers, parts):
    return nn.Sequential(*[{"mlp": Mlp, "block": Block}[kind](dim, parts) for _ in range(layers)])


PLANS = {
    "mlp": {"*.up": ColwiseParallel, "*.down": RowwiseParallel},
    "block": {"*.w[qkv]": ColwiseParallel, "*.wo": RowwiseParallel, "*.mlp.up": ColwiseParallel, "*.mlp.down": RowwiseParallel},
}


def collectives(kind, layers):
    """Of a step. The first layers' input needs no gradient, so there backward has none."""
    return 2 * layers - 1 if kind == "mlp" else 2 * layers + 4 * layers


def step_us(model, inputs):
    """Of one step, which the ranks begin together."""
    dist.barrier()
    start = time.perf_counter()
    model.zero_grad()
    model(inputs).sum().backward()
    return 1e6 * (time.perf_counter() - start)


def run_rank(rank, folder, result, kind, dim, layers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    model = stack(kind, dim, layers, 1)
    parallelize_module(model, mesh, {path: style() for path, style in PLANS[kind].items()})
    inputs = torch.randn(BATCH, TOKENS, dim)
    part = stack(kind, dim, layers, RANKS)
    pairs = [(step_us(model, inputs), step_us(part, inputs)) for _ in range(STEPS + STEPS // 2)][STEPS // 2:]
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        result.put((statistics.median(step for step, _ in pairs), statistics.median(step - compute for step, compute in pairs)))


def theirs(*case):
    with tempfile.TemporaryDirectory() as folder:
        result = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run_rank, args=(folder, result, *case), nprocs=RANKS)
        return result.get()


def ours(kind, dim, layers):
    done = subprocess.run([PIPEWRIGHT, "launch", "-n", str(RANKS), "--", OURS, kind, str(dim), str(layers), str(STEPS)],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    words = done.stdout.split()
    return float(words[words.index("step_us") + 1]), float(words[words.index("overhead_us") + 1])


def main():
    for case in CASES:
        kind, dim, layers = case
        ratios = []
        for pair in range(PAIRS):
            (slow, their_overhead), (fast, our_overhead) = theirs(*case), ours(*case)
            ratios.append(slow / fast)
            count = collectives(kind, layers)
            print(f"pair {pair}: PyTorch {slow / 1000:.2f} ms, ours {fast / 1000:.2f} ms, ratio {slow / fast:.2f}; overhead per "
                  f"collective: PyTorch {their_overhead / count:.0f} us, ours {our_overhead / count:.0f} us", flush=True)
        print(f"{layers} x {kind} of dimension {dim}: median ratio {statistics.median(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
