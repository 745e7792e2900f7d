"""Compares one data-parallel training step with PyTorch's, over Gloo with 2 and 4 processes.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_ddp    # DistributedDataParallel, ddp::replicate
  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_fsdp   # both sides' fully_shard

Both sides train a GPT with 12 layers of dimension 256 (forward, backward, AdamW) with one intra-op thread per rank.
Prints, for alternating pairs, the median step time of each side and their ratio (PyTorch / pipewright; above 1, pipewright
is faster), then the median ratio, and for fully_shard the bytes of parameters and gradients that one step copies within
one rank. Fails only if one side fails; no speed is required.
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
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

PIPEWRIGHT, OURS, HOW = sys.argv[1:4] if len(sys.argv) > 3 else (None, None, None)
LAYERS, DIM, CONTEXT, HEAD, VOCABULARY, BATCH, STEPS, PAIRS = 12, 256, 64, 16, 256, 4, 8, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.mix = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, DIM // HEAD, HEAD)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.output = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        return self.output(self.norm(self.blocks(self.tokens(tokens) + self.positions(torch.arange(CONTEXT)))))


class Copies(TorchDispatchMode):
    """Counts the bytes that fully_shard's own operations copy: into all-gathers, out of them, and into reductions."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name
        if name in ("fsdp::all_gather_copy_in", "aten::_foreach_copy_"):
            self.bytes += sum(tensor.nbytes for tensor in args[0])
        elif name == "fsdp::split_with_sizes_copy":
            self.bytes += sum(tensor.nbytes for tensor in kwargs["out"])
        elif name == "fsdp::chunk_cat":
            self.bytes += kwargs["out"].nbytes
        return function(*args, **kwargs)


def run_rank(rank, ranks, folder, result, how):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    model = Gpt()
    if how == "shard":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))
    times = []

    def train():
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    for step in range(STEPS + STEPS // 2):
        start = time.perf_counter()
        train()
        if step >= STEPS // 2:
            times.append(time.perf_counter() - start)
    with Copies() as copies:  # slow, so it is not timed
        train()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        result.put((1e6 * statistics.median(times), copies.bytes))


def theirs(ranks):
    with tempfile.TemporaryDirectory() as folder:
        result = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run_rank, args=(ranks, folder, result, HOW), nprocs=ranks)
        return result.get()


def ours(ranks):
    done = subprocess.run([PIPEWRIGHT, "launch", "-n", str(ranks), "--", OURS, HOW, str(BATCH), str(STEPS)],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    words = done.stdout.split()
    return float(words[words.index("median_us") + 1]), int(words[words.index("bytes_copied") + 1])


def main():
    for ranks in (2, 4):
        ratios = []
        for pair in range(PAIRS):
            (slow, their_bytes), (fast, our_bytes) = theirs(ranks), ours(ranks)
            ratios.append(slow / fast)
            print(f"pair {pair}: PyTorch {slow / 1000:.1f} ms, ours {fast / 1000:.1f} ms, ratio {slow / fast:.2f}", flush=True)
        print(f"{ranks} ranks: median ratio {statistics.median(ratios):.2f}", flush=True)
        if HOW == "shard":
            print(f"copied per step and rank: PyTorch {their_bytes / 1e6:.1f} MB, ours {our_bytes / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
