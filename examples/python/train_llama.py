"""Trains a small Llama on the bytes of a text, with pipeline x FSDP2 x tensor parallelism, on the CPU.

  torchrun --nproc-per-node 4 examples/python/train_llama.py --data README.md --pp 2 --dp 2 --schedule ZBV --stages-per-rank 2

The schedule is a name of the catalogue, or a file of `pipewright print` or `pipewright search`. Checkpoints are those of
torch.distributed.checkpoint, by names of layers, so that a run with other flags of parallelism can resume them. With --record,
`pipewright print FILE --format html` draws when each action of the last step ran. docs/python.md explains pipewright_torch.
"""

import argparse
import os

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

IN_V = ("ZBV", "ZBVZeroBubble", "DualPipeV", "V-Half", "V-Min", "1F1B-V")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a text")
    parser.add_argument("--schedule", default="1F1B", help="a name, or a .csv, .plan or .json file")
    parser.add_argument("--pp", type=int, default=2, help="ranks of the pipeline")
    parser.add_argument("--dp", type=int, default=1, help="ranks that FSDP2 shards over")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each matrix")
    parser.add_argument("--stages-per-rank", type=int, default=1)
    parser.add_argument("--v", action="store_true", help="stages lie in a V: rank r has stages r and 2 PP - 1 - r; a file does not say so")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="rows per step of each data-parallel rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", metavar="BACKEND", help="torch.compile each block, for example with `inductor`")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks in the backward")
    parser.add_argument("--save", metavar="DIR", help="where the last step's checkpoint goes")
    parser.add_argument("--resume", metavar="DIR")
    parser.add_argument("--record", metavar="FILE")
    args = parser.parse_args()
    for what, count, by in (("--batch", args.batch, args.microbatches), ("--layers", args.layers, args.pp * args.stages_per_rank),
                            ("--kv-heads", args.kv_heads, args.tp), ("--heads", args.heads, args.kv_heads)):
        if count < by or count % by:
            parser.error(f"{what}: expected a multiple of {by}, got {count}")
    return args


# ---- the model


def rotated(x):
    """Rotary position embedding of x, [batch, heads, sequence, head dim] (arXiv:2104.09864)."""
    length, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention. With tensor parallelism, of the heads of this rank."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.head_dim = dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, dim):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, 3 * dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    PLAN = {"attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(), "mlp.w1": ColwiseParallel(), "mlp.w3": ColwiseParallel(), "mlp.w2": RowwiseParallel()}

    def __init__(self, args):
        super().__init__()
        self.attention, self.mlp = Attention(args.dim, args.heads, args.kv_heads), FeedForward(args.dim)
        self.norm1, self.norm2 = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """Some blocks, the first stage after the embedding, the last one before the head. Names of layers are those of the model."""

    def __init__(self, index, args):
        super().__init__()
        stages = args.pp * args.stages_per_rank
        count = args.layers // stages
        self.recomputes = args.checkpoint
        if index == 0:
            torch.manual_seed(args.seed)
            self.embedding = nn.Embedding(256, args.dim)
        self.layers = nn.ModuleDict()
        for layer in range(index * count, (index + 1) * count):
            torch.manual_seed(args.seed + 1 + layer)  # as in any other split of the layers
            self.layers[str(layer)] = Block(args)
        if index == stages - 1:
            torch.manual_seed(args.seed + 1 + args.layers)
            self.norm, self.head = nn.RMSNorm(args.dim), nn.Linear(args.dim, 256, bias=False)

    def forward(self, x):
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        for block in self.layers.values():
            x = pw.checkpoint(block, x) if self.recomputes else block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def loss_fn(logits, target):
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def make_stage(index, args, mesh):
    stage = Stage(index, args).to(mesh.device_type)
    for block in stage.layers.values():
        if args.tp > 1:
            parallelize_module(block, mesh["tp"], Block.PLAN)
        if args.compile:
            block.compile(backend=args.compile, dynamic=False)
        if args.dp > 1:
            fully_shard(block, mesh=mesh["dp"])
    return fully_shard(stage, mesh=mesh["dp"]) if args.dp > 1 else stage


# ---- training


def batch_of(text, step, args, replica):
    """Bytes and the bytes after them, [batch, context], the same on all ranks of a replica."""
    generator = torch.Generator().manual_seed(args.seed + 1000 * step + replica)
    starts = torch.randint(len(text) - args.context, (args.batch,), generator=generator)
    rows = torch.stack([text[start:start + args.context + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


class Checkpoint:
    """The state of this rank's stages and their optimizers, by names that do not depend on the pipeline."""

    OPTIONS = states.StateDictOptions(flatten_optimizer_state_dict=True)

    def __init__(self, modules, optimizers):
        self.parts = [(modules[index], optimizers[index]) for index in modules]

    def state_dict(self):
        found = {}
        for module, optimizer in self.parts:
            found |= states.get_model_state_dict(module)
            found |= states.get_optimizer_state_dict(module, optimizer, options=self.OPTIONS)
        return found

    def load_state_dict(self, found):
        for module, optimizer in self.parts:
            states.set_model_state_dict(module, found, options=states.StateDictOptions(strict=False))
            states.set_optimizer_state_dict(module, optimizer, found, options=self.OPTIONS)


def main():
    args = options()
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    pw.register_backend()
    dist.init_process_group("cpu:gloo,cuda:pipewright" if has_gpu else "pipewright")
    mesh = init_device_mesh("cuda" if has_gpu else "cpu", (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    rank, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    num_stages = args.pp * args.stages_per_rank
    in_v = args.v or args.schedule in IN_V
    indices = [rank, num_stages - 1 - rank] if in_v else list(range(rank, num_stages, args.pp))
    modules = {index: make_stage(index, args, mesh) for index in indices}
    schedule = pw.Schedule(args.schedule, modules, args.microbatches, loss_fn, group=mesh["pp"], same_batch=mesh["tp"] if args.tp > 1 else None,
                           split={index: not args.compile for index in indices})
    optimizers = {index: torch.optim.AdamW(module.parameters(), lr=args.lr) for index, module in modules.items()}
    first, last = 0 in modules, num_stages - 1 in modules
    progress = {"checkpoint": Checkpoint(modules, optimizers), "step": torch.zeros((), dtype=torch.int64)}
    if args.resume:
        dcp.load(progress, checkpoint_id=args.resume)
    if args.record:
        schedule.record()
    with open(args.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

    for step in range(int(progress["step"]), args.steps):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        inputs, target = (tensor.to(mesh.device_type) for tensor in batch_of(text, step, args, replica))
        losses = []
        schedule.step(*([inputs] if first else []), target=target if last else None, losses=losses, return_outputs=False)
        schedule.confirm()
        for optimizer in optimizers.values():
            optimizer.step()
        loss = torch.stack(losses).mean() if last else torch.zeros((), device=mesh.device_type)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item() / (args.dp * args.tp):.6f}", flush=True)
        progress["step"] += 1

    if args.record and (recording := schedule.recording()) is not None and replica == 0 and mesh["tp"].get_local_rank() == 0:
        recording.save(args.record)
    if args.save:
        dcp.save(progress, checkpoint_id=os.path.abspath(args.save))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
