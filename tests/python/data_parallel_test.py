"""Pipelines over PyTorch's own data and tensor parallelism, on 2 x 2 processes with the backend `pipewright`.

Run by Bazel with tag `peer`.
"""

import os
import re
import tempfile
import time
import unittest

import pipewright_torch as pw
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipelines import DTYPE, Mlp, build, mse, placement
from ranks import DEVICE, use_device
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

SCHEDULES = {"1F1B": 2, "Interleaved1F1B": 4, "ZB-H1": 2, "ZBV": 4, "DualPipeV": 4}
MICROBATCHES = 4


def nested(module, mesh):
    for unit in (module.first, module.second):
        fully_shard(unit, mesh=mesh)
    return fully_shard(module, mesh=mesh)


WRAPPERS = {
    "fully_shard": nested,
    "DistributedDataParallel": lambda module, mesh: DistributedDataParallel(module, process_group=mesh.get_group()),
    "replicate": lambda module, mesh: replicate(module, process_group=mesh.get_group()),
}


def batch(replica):
    torch.manual_seed(70 + replica)
    return tuple(torch.randn(2 * MICROBATCHES, 8, dtype=DTYPE) for _ in range(2))


def expected_gradients(num_stages, replicas=2):
    """The mean over all replicas of the gradients of the plain model."""
    modules = [build(lambda index: Mlp(), index) for index in range(num_stages)]
    for replica in range(replicas):
        inputs, target = batch(replica)
        for x, y in zip(inputs.split(2), target.split(2)):
            for module in modules:
                x = module(x)
            (mse(x, y) / MICROBATCHES / replicas).backward()
    return [{name: parameter.grad for name, parameter in module.named_parameters()} for module in modules]


def assert_close(module, expected, **tolerance):
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        torch.testing.assert_close(gradient, expected[name.removeprefix("module.")], **(tolerance or {"rtol": 1e-10, "atol": 1e-12}),
                                   msg=lambda text: f"{name}: {text}")


def step(schedule, name, modules, num_stages, replica):
    inputs, target = batch(replica)
    schedule.step(*([inputs] if 0 in modules else []), target=target if num_stages - 1 in modules else None)


def data_parallel(mesh, wrapper):
    for name, num_stages in SCHEDULES.items():
        mine = [index for index, rank in enumerate(placement(name, 2, num_stages)) if rank == mesh["pp"].get_local_rank()]
        modules = {index: WRAPPERS[wrapper](build(lambda index: Mlp(), index), mesh["dp"]) for index in mine}
        schedule = pw.Schedule(name, modules, MICROBATCHES, mse, group=mesh["pp"])
        for _ in range(2):
            for module in modules.values():
                module.zero_grad()
            step(schedule, name, modules, num_stages, mesh["dp"].get_local_rank())
            expected = expected_gradients(num_stages)
            for index, module in modules.items():
                assert_close(module, expected[index])
        schedule.close()


def mixed_precision(mesh):
    """The sum over microbatches is in reduce_dtype, also under split backwards: as in FSDP2 without a pipeline."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = lambda index: fully_shard(build(lambda index: Mlp(), index).float(), mesh=mesh["dp"], mp_policy=policy)  # noqa: E731
    inputs, target = (tensor.float() for tensor in batch(mesh["dp"].get_local_rank()))
    for name, num_stages in SCHEDULES.items():
        plain = [shard(index) for index in range(num_stages)]
        for number, (x, y) in enumerate(zip(inputs.split(2), target.split(2))):
            for module in plain:
                module.set_requires_gradient_sync(number == MICROBATCHES - 1)
                module.set_is_last_backward(number == MICROBATCHES - 1)
                x = module(x)
            (mse(x.float(), y) / MICROBATCHES).backward()
        mine = [index for index, rank in enumerate(placement(name, 2, num_stages)) if rank == mesh["pp"].get_local_rank()]
        modules = {index: shard(index) for index in mine}
        schedule = pw.Schedule(name, modules, MICROBATCHES, lambda output, target: mse(output.float(), target), group=mesh["pp"])
        schedule.step(*([inputs] if 0 in modules else []), target=target if num_stages - 1 in modules else None)
        for index, module in modules.items():
            assert_close(module, {n: p.grad.full_tensor() for n, p in plain[index].named_parameters()}, rtol=1e-6, atol=1e-7)
        schedule.close()


class Headed(Mlp):
    """Its loss runs the head, in the way of torchtitan's ChunkedLossWrapper."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.norm(super().forward(x))


class WithGradient(torch.autograd.Function):
    """The loss, whose gradient is known."""

    @staticmethod
    def forward(ctx, hidden, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad, None, None


def a_loss_reduces_gradients(mesh):
    """The loss's own backward reduces the unit of the norm and the head before W has the norm's gradient."""
    for name, num_stages in SCHEDULES.items():
        make = lambda index: Headed() if index == num_stages - 1 else Mlp()  # noqa: E731, B023
        modules = {index: build(make, index) for index, rank in enumerate(placement(name, 2, num_stages)) if rank == mesh["pp"].get_local_rank()}
        for module in modules.values():
            if isinstance(module, Headed):
                fully_shard([module.norm, module.head], mesh=mesh["dp"])
            fully_shard(module, mesh=mesh["dp"])

        def loss_fn(output, target):
            head, hidden = modules[num_stages - 1].head, output.detach().requires_grad_()  # noqa: B023
            head.set_requires_gradient_sync(True, recurse=False)
            loss = mse(head(hidden), target)
            loss.backward()
            return WithGradient.apply(output, hidden.grad, loss.detach())

        schedule = pw.Schedule(name, modules, MICROBATCHES, loss_fn, group=mesh["pp"], scale_grads=False)
        plain = [build(make, index) for index in range(num_stages)]
        for replica in range(2):
            for x, y in zip(*(tensor.split(2) for tensor in batch(replica))):
                for module in plain:
                    x = module(x)
                (mse(plain[-1].head(x), y) / 2).backward()
        for _ in range(2):
            for module in modules.values():
                module.zero_grad()
            step(schedule, name, modules, num_stages, mesh["dp"].get_local_rank())
            for index, module in modules.items():
                assert_close(module, {n: p.grad for n, p in plain[index].named_parameters()})
        schedule.close()


def tensor_parallel(mesh):
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("pp", "tp"))
    for name, num_stages in SCHEDULES.items():
        modules = {}
        for index, rank in enumerate(placement(name, 2, num_stages)):
            if rank == mesh["pp"].get_local_rank():
                modules[index] = parallelize_module(build(lambda index: Mlp(), index), mesh["tp"],
                                                    {"first": ColwiseParallel(), "second": RowwiseParallel()})
        schedule = pw.Schedule(name, modules, MICROBATCHES, mse, group=mesh["pp"], same_batch=mesh["tp"])
        step(schedule, name, modules, num_stages, 0)
        plain = [build(lambda index: Mlp(), index) for index in range(num_stages)]
        for x, y in zip(*(tensor.split(2) for tensor in batch(0))):
            for module in plain:
                x = module(x)
            (mse(x, y) / MICROBATCHES).backward()
        for index, module in modules.items():
            assert_close(module, {n: p.grad for n, p in plain[index].named_parameters()})
        schedule.close()


class Failing(torch.autograd.Function):
    """Raises on rank 3, in the `calls`-th forward or backward from now."""

    where, calls = None, 0

    @staticmethod
    def count(where):
        if dist.get_rank() == 3 and Failing.where == where:
            Failing.calls -= 1
            if Failing.calls == 0:
                raise ValueError("out of luck")

    @staticmethod
    def forward(ctx, x):
        Failing.count("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Failing.count("backward")
        return grad


class FailingMlp(Mlp):
    def forward(self, x):
        return Failing.apply(super().forward(x))


FAILURES = (("fully_shard", "1F1B", "forward"), ("fully_shard", "ZBV", "backward"), ("DistributedDataParallel", "1F1B", "backward"),
            ("replicate", "1F1B", "forward"))


def a_failure_ends_collectives(mesh):
    """Rank 3 raises before a collective that rank 2 waits for: all four end with its error, and train on after reset()."""
    replica = mesh["dp"].get_local_rank()
    for wrapper, name, where in FAILURES:
        num_stages = SCHEDULES[name]
        mine = [index for index, rank in enumerate(placement(name, 2, num_stages)) if rank == mesh["pp"].get_local_rank()]
        modules = {index: WRAPPERS[wrapper](build(lambda index: FailingMlp(), index), mesh["dp"]) for index in mine}
        schedule = pw.Schedule(name, modules, MICROBATCHES, mse, group=mesh["pp"])
        step(schedule, name, modules, num_stages, replica)
        Failing.where, Failing.calls = where, 1 if where == "forward" else MICROBATCHES * len(mine)  # the last backward
        try:
            step(schedule, name, modules, num_stages, replica)
            schedule.confirm()
        except pw.StepError as error:
            assert str(error).startswith("rank 3, step 1, action "), error
        else:
            raise AssertionError("expected an error")
        assert schedule.reset() == 1
        for module in modules.values():
            module.zero_grad()
        step(schedule, name, modules, num_stages, replica)
        schedule.confirm()
        expected = expected_gradients(num_stages)
        for index, module in modules.items():
            assert_close(module, expected[index])
        schedule.close()


def different_collectives_are_an_error(mesh):
    """Otherwise ranks would wait for each other, as FSDP2's do where one gathers and another does not."""
    try:
        dist.all_reduce(torch.ones(2 + dist.get_rank() // 3))
    except RuntimeError as error:
        assert re.search(r"collective \d+ of group `.*`: expected allreduce of Float \[\d\] as on rank \d, got allreduce", str(error)), error
    else:
        raise AssertionError("expected an error")
    # The process of rank 0, which has the store, ends last.
    store = dist.distributed_c10d._get_default_store()
    store.add("has failed", 1)
    while store.add("has failed", 0) < 4:
        time.sleep(0.01)


def run_rank(rank, store):
    torch.set_num_threads(1)
    use_device(rank)
    pw.register_backend()
    dist.init_process_group("pipewright", init_method=f"file://{store}", rank=rank, world_size=4)
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("pp", "dp"))
    for wrapper in WRAPPERS:
        data_parallel(mesh, wrapper)
    mixed_precision(mesh)
    a_loss_reduces_gradients(mesh)
    tensor_parallel(mesh)
    a_failure_ends_collectives(mesh)
    different_collectives_are_an_error(mesh)
    os._exit(0)


def run_hybrid_rank(rank, store):
    """HSDP: 2 stages, each sharded over 2 ranks and replicated on 2. A wrong batch of one replica reaches all 8 ranks."""
    torch.set_num_threads(1)
    use_device(rank)
    pw.register_backend()
    dist.init_process_group("pipewright", init_method=f"file://{store}", rank=rank, world_size=8)
    mesh = init_device_mesh(DEVICE, (2, 2, 2), mesh_dim_names=("pp", "replicate", "shard"))
    replica = rank % 4
    for name in ("1F1B", "ZBV"):
        num_stages = SCHEDULES[name]
        mine = [index for index, rank in enumerate(placement(name, 2, num_stages)) if rank == mesh["pp"].get_local_rank()]
        offload = CPUOffloadPolicy(pin_memory=False) if name == "1F1B" else OffloadPolicy()
        modules = {index: fully_shard(build(lambda index: Mlp(), index), mesh=mesh["replicate", "shard"], offload_policy=offload) for index in mine}
        schedule = pw.Schedule(name, modules, MICROBATCHES, mse, group=mesh["pp"])
        inputs, target = batch(replica)
        wrong = inputs[:6] if rank == 3 else inputs
        try:
            schedule.step(*([wrong] if 0 in modules else []), target=target if num_stages - 1 in modules else None)
        except pw.BatchError as error:
            assert "got 6" in str(error) or "expected size 6" in str(error), error
        else:
            raise AssertionError("expected an error")
        for _ in range(2):
            for module in modules.values():
                module.zero_grad()
            step(schedule, name, modules, num_stages, replica)
            expected = expected_gradients(num_stages, 4)
            for index, module in modules.items():
                assert_close(module, expected[index])
        schedule.close()
    dist.barrier()
    os._exit(0)


class DataParallelTest(unittest.TestCase):
    def test_hybrid_sharding_on_eight_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(run_hybrid_rank, (os.path.join(folder, "store"),), nprocs=8, start_method="fork")

    def test_two_by_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(run_rank, (os.path.join(folder, "store"),), nprocs=4, start_method="fork")


if __name__ == "__main__":
    unittest.main(verbosity=2)
