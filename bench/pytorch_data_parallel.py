"""Compares one data-parallel training step with PyTorch's, over Gloo with 2 and 4 processes.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_ddp    # DistributedDataParallel, ddp::replicate
  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_fsdp   # both sides' fully_shard
  ... //bench:pytorch_hsdp         # both sides' fully_shard, 2 replicas of 2 shards
  ... //bench:pytorch_replicate    # both sides' replicate
  ... //bench:pytorch_replicate_bf16, pytorch_fsdp_bf16, pytorch_hsdp_bf16    # computing in bf16 and reducing in fp32
  ... --test_arg=4    # only with 4 processes

Both sides train a GPT with 12 layers of dimension 256 (forward, backward, AdamW) with one intra-op thread per rank. In the
same processes, both also measure the least that such a step takes: the step of a plain model, and the bare collectives on
the same bytes one after another. Prints, for alternating pairs, the median step time of each side, their ratio (PyTorch /
pipewright; above 1, pipewright is faster), each side's time over its least, and its CPU time beyond the least; then the
medians, and for fully_shard the bytes of parameters and gradients that one step copies within one rank. Fails only if one
side fails; no speed is required.
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
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from pytorch_gpt import Block

PIPEWRIGHT, OURS, HOW, DTYPE = sys.argv[1:5] if len(sys.argv) > 4 else (None,) * 4
RANKS = [int(word) for word in sys.argv[5:]] or ([4] if HOW == "hsdp" else [2, 4])
LAYERS, DIM, CONTEXT, HEAD, VOCABULARY, BATCH, STEPS, PAIRS = 12, 256, 64, 16, 256, 4, 8, 7


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.Sequential(*[Block(DIM, HEAD) for _ in range(LAYERS)])
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


def measure(step):
    """Medians of the time and of the process's CPU time, in microseconds."""
    times, cpu_times = [], []
    for i in range(STEPS + STEPS // 2):
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        if i >= STEPS // 2:
            times.append(1e6 * (time.perf_counter() - start))
            cpu_times.append(1e6 * (time.process_time() - cpu_start))
    return statistics.median(times), statistics.median(cpu_times)


class BareCollectives:
    """The collectives of a step, one after another, on buffers of their own."""

    def __init__(self, replicas, shards, gathered):
        self.replicas, self.shards, self.gathered, self.groups = replicas, shards, gathered, []

    def add(self, numel, gathers):
        shards = self.shards.size() if self.shards else 1
        chunk = (numel + shards - 1) // shards
        self.groups.append((torch.zeros(chunk * shards), torch.zeros(chunk), torch.zeros(chunk * shards, dtype=self.gathered),
                            torch.zeros(chunk, dtype=self.gathered), gathers))

    def run(self):
        for grad, grad_part, gathered, gathered_part, gathers in self.groups:
            for _ in range(gathers if self.shards else 0):
                dist.all_gather_into_tensor(gathered, gathered_part, group=self.shards)
            if self.shards:
                dist.reduce_scatter_tensor(grad_part, grad, group=self.shards)
            if self.replicas:
                dist.all_reduce(grad_part if self.shards else grad, group=self.replicas)


def numel_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


def run_rank(rank, ranks, folder, result, how, dtype):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    replicas = {"ddp": ranks, "replicate": ranks, "shard": 1, "hsdp": 2}[how]
    mesh = dist.init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("dp_replicate", "dp_shard"))
    compute = torch.bfloat16 if dtype == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if dtype == "bf16" else MixedPrecisionPolicy()
    model, shards = Gpt(), how in ("shard", "hsdp")
    bare = BareCollectives(mesh.get_group("dp_replicate") if replicas > 1 else None, mesh.get_group("dp_shard") if shards else None, compute)
    if not shards:
        bare.add(numel_of(model), 0)
    else:
        for block in model.blocks:
            bare.add(numel_of(block), 2)
        bare.add(numel_of(model) - numel_of(model.blocks), 1)
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        wrap = fully_shard if shards else replicate
        for module in (*model.blocks, model):
            wrap(module, mesh={"replicate": mesh["dp_replicate"], "shard": mesh["dp_shard"], "hsdp": mesh}[how], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))

    def forward_backward(module):
        F.cross_entropy(module(inputs).float().flatten(0, 1), targets.flatten()).backward()

    def train():
        optimizer.zero_grad()
        forward_backward(model)
        optimizer.step()

    step = measure(train)
    with Copies() as copies:  # slow, so it is not timed
        train()
    plain = Gpt().to(compute)
    # The optimizer of a sharded step updates a part of the parameters only.
    updated = [torch.zeros_like(getattr(parameter, "_local_tensor", parameter)).requires_grad_() for parameter in model.parameters()]
    for parameter in updated:
        parameter.grad = torch.zeros_like(parameter)
    plain_optimizer = torch.optim.AdamW(updated, lr=1e-3)

    def train_plain():
        plain.zero_grad()
        forward_backward(plain)
        bare.run()
        plain_optimizer.step()

    least = measure(train_plain)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        result.put((*step, *least, copies.bytes))


def theirs(ranks):
    with tempfile.TemporaryDirectory() as folder:
        result = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run_rank, args=(ranks, folder, result, HOW, DTYPE), nprocs=ranks)
        return result.get()


def ours(ranks):
    how = "replicate" if HOW == "ddp" else HOW
    done = subprocess.run([PIPEWRIGHT, "launch", "-n", str(ranks), "--", OURS, how, DTYPE, str(BATCH), str(STEPS)],
                          capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    words = done.stdout.split()
    return tuple(float(words[words.index(name) + 1]) for name in ("step_us", "cpu_us", "least_us", "least_cpu_us", "bytes_copied"))


def main():
    for ranks in RANKS:
        rows = []
        for pair in range(PAIRS):
            (slow, their_cpu, their_least, their_least_cpu, their_bytes) = theirs(ranks)
            (fast, our_cpu, our_least, our_least_cpu, our_bytes) = ours(ranks)
            rows.append((slow / fast, slow / their_least, fast / our_least, their_cpu - their_least_cpu, our_cpu - our_least_cpu))
            print(f"pair {pair}: PyTorch {slow / 1000:.1f} ms, ours {fast / 1000:.1f} ms, ratio {slow / fast:.2f}", flush=True)
        ratio, their_over, our_over, their_extra, our_extra = (statistics.median(column) for column in zip(*rows))
        print(f"{ranks} ranks: median ratio {ratio:.2f}; over a plain step and bare collectives: PyTorch {their_over:.2f}, ours "
              f"{our_over:.2f}; CPU time beyond them: PyTorch {their_extra / 1000:.1f} ms, ours {our_extra / 1000:.1f} ms", flush=True)
        if HOW in ("shard", "hsdp"):
            print(f"copied per step and rank: PyTorch {their_bytes / 1e6:.1f} MB, ours {our_bytes / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
