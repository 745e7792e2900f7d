"""Compares train_gpt with the same model trained by PyTorch (pipelining, and fully_shard), over Gloo: tokens per second.

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_train_gpt

pp 2, and pp 2 x dp-shard 2. Each rank is a process with one intra-op thread. Both sides run 1F1B and then do the same: they
clip by the norm of the whole model's gradients, over all stages, and call AdamW. This is on train_gpt's default model,
4 layers of dimension 64, and on 8 layers of dimension 256, where computing takes nearly all of the time, which is the same on
both sides. Prints, for alternating pairs, the median tokens/s of each side and their ratio (pipewright / PyTorch; above 1,
pipewright is faster), then the medians and the peak memory of a process of each side. Fails only if one side fails; no speed
is required.
"""

import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor

from pytorch_gpt import Block

CONTEXT, HEAD, WARM_UP, PAIRS = 64, 16, 3, 5


class Run(NamedTuple):
    layers: int
    dim: int
    batch: int
    microbatches: int
    steps: int


RUNS = [Run(4, 64, 16, 4, steps=100), Run(8, 256, 32, 8, steps=12)]


class Stage(nn.Module):
    def __init__(self, run, first):
        super().__init__()
        if first:
            self.tokens, self.positions = nn.Embedding(256, run.dim), nn.Embedding(CONTEXT, run.dim)
        self.blocks = nn.ModuleList(Block(run.dim, HEAD) for _ in range(run.layers // 2))
        if not first:
            self.norm, self.output = nn.LayerNorm(run.dim), nn.Linear(run.dim, 256)
        self.first = first

    def forward(self, x):
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(CONTEXT))
        for block in self.blocks:
            x = block(x)
        return x if self.first else self.output(self.norm(x))


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip(parameters, pipeline):
    """Clips the gradients of the whole model, as train_gpt does: by the norm over all stages, at 1."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    dist.all_reduce(norm, group=pipeline)
    torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm.sqrt())


def train_rank(rank, run, shards, port, results):
    """One rank of PyTorch's side. The last one reports tokens/s of the median step, and its peak memory."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(2 * shards), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, shards), mesh_dim_names=("pp", "dp"))
    index = mesh.get_local_rank("pp")
    module = Stage(run, index == 0)
    if shards > 1:
        for block in module.blocks:
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    stage = PipelineStage(module, index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, run.microbatches, loss_fn=loss)
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    rows, seconds = run.batch // shards, []
    for step in range(run.steps):
        torch.manual_seed(step)
        tokens = torch.randint(256, (rows, CONTEXT + 1))
        begin = time.perf_counter()
        optimizer.zero_grad()
        if index == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous(), losses=[])
        clip(parameters, mesh.get_group("pp"))
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    if rank == 2 * shards - 1:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results.put((run.batch * CONTEXT / statistics.median(seconds[WARM_UP:]), peak))
    dist.barrier()
    dist.destroy_process_group()


def pytorch(run, shards):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").Queue()
    context = mp.spawn(train_rank, (run, shards, port, results), nprocs=2 * shards, join=False)
    result = results.get(timeout=300)
    while not context.join():
        pass
    return result


def pipewright(program, train_gpt, run, shards, text):
    folder = os.environ.get("TEST_TMPDIR", ".")
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = [program, "launch", "-n", str(2 * shards), "--", train_gpt, "--data", text, "--pp", "2", "--dp-shard",
               str(shards), "--layers", str(run.layers), "--dim", str(run.dim), "--context", str(CONTEXT), "--batch",
               str(run.batch), "--microbatches", str(run.microbatches), "--steps", str(run.steps), "--clip", "1", "--metrics",
               metrics, "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=300)
    with open(metrics, encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    seconds = statistics.median(step["step_seconds"] for step in steps[WARM_UP:])
    return (run.batch * CONTEXT / seconds, steps[-1]["peak_bytes"])


def main():
    program, train_gpt, text = sys.argv[1:4]
    for run, shards in itertools.product(RUNS, (1, 2)):
        print(f"{run.layers} layers of {run.dim}, pp 2 x dp-shard {shards}", flush=True)
        pairs = []
        for _ in range(PAIRS):
            pairs.append((pipewright(program, train_gpt, run, shards, text), pytorch(run, shards)))
            (ours, _), (theirs, _) = pairs[-1]
            print(f"  pipewright {ours:7.0f} tokens/s, PyTorch {theirs:7.0f} tokens/s, ratio {ours / theirs:.2f}", flush=True)
        ours, theirs = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
        peaks = [statistics.median(pair[side][1] for pair in pairs) / 2**20 for side in (0, 1)]
        print(f"  median: {ours:.0f} and {theirs:.0f} tokens/s, ratio {ratio:.2f}; peak memory {peaks[0]:.0f} and "
              f"{peaks[1]:.0f} MiB of the last rank's process", flush=True)


if __name__ == "__main__":
    main()
