"""pipewright_torch.Schedule on processes over Gloo: gradients, losses and outputs of the model without a pipeline.

Run by Bazel with tag `peer`.
"""

import gc
import json
import os
import tempfile
import unittest
import weakref

import pipewright_torch as pw
import torch
import torch.distributed as dist
from pipelines import DTYPE, Mlp, assert_gradients, build, make_schedule, mse, plain
from ranks import DEVICE, run_on_ranks
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from user_function import Scale

WIDTH, ROWS = 8, 2
# By stages per rank.
SCHEDULES = {1: ["GPipe", "1F1B", "Eager1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"],
             2: ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "V-Half", "V-Min", "1F1B-V"]}


class Encoder(torch.nn.Module):
    """A block of torch.nn, a user's own function, and activation checkpointing."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.mlp = Mlp(WIDTH)
        self.weight = torch.nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.mlp, self.layer(x), use_reentrant=False)
        return Scale.apply(x, self.weight)


def batch(microbatches, *shape):
    torch.manual_seed(7)
    inputs, target = (torch.randn(microbatches * ROWS, *shape, WIDTH, dtype=DTYPE) for _ in range(2))
    return inputs, target, [((x,), {}, y) for x, y in zip(inputs.split(ROWS), target.split(ROWS))]


def each_schedule(rank, per_rank, make, *shape):
    ranks = dist.get_world_size()
    for stages_per_rank in per_rank:
        for name in SCHEDULES[stages_per_rank]:
            num_stages, microbatches = ranks * stages_per_rank, 2 * ranks
            inputs, target, split = batch(microbatches, *shape)
            expected, expected_losses, _ = plain(make, num_stages, mse, split)
            modules, schedule = make_schedule(name, make, num_stages, microbatches)
            first, last = 0 in modules, num_stages - 1 in modules
            losses = []
            for _ in range(2):  # the first step learns shapes
                for module in modules.values():
                    module.zero_grad()
                schedule.step(*([inputs] if first else []), target=target if last else None, losses=losses)
            assert [loss.item() for loss in losses] == ([loss.item() for loss in expected_losses] if last else []), name
            # All schedules of the catalogue run the backwards of a stage in the order of microbatches, except those in a V.
            assert_gradients(modules, dict(enumerate(expected)), exact=name in ("1F1B", "ZB-H1", "Interleaved1F1B"))
            before = {index: [p.grad.clone() for p in module.parameters()] for index, module in modules.items()}
            output = schedule.eval(*([inputs] if first else []))
            with torch.no_grad():
                whole = inputs
                for module in expected:
                    whole = module(whole)
            if last:
                torch.testing.assert_close(output, whole, rtol=1e-10, atol=1e-12)
            else:
                assert output is None
            for index, module in modules.items():
                assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), before[index])), "eval changes gradients"
            schedule.close()


def every_schedule_on_two_ranks(rank):
    each_schedule(rank, (1, 2), lambda index: Encoder(), 3)


def every_schedule_on_four_ranks(rank):
    each_schedule(rank, (1, 2), lambda index: Mlp())


# ---- what stages take and return


class Nested(torch.nn.Module):
    """Takes and returns a structure with None, and keyword arguments."""

    def __init__(self, index):
        super().__init__()
        self.index = index
        self.mlp = Mlp()

    def forward(self, x, others=None, *, bias=None, factor=1):
        if others is not None:
            assert others["none"] is None, others
            x = x + others["twice"][0]
        x = self.mlp(x) * factor + (0 if bias is None else bias)
        if self.index == 3:
            return {"out": x, "none": None}
        return x, {"twice": [2 * x, x.detach()], "none": None}


def structures(rank):
    def loss_fn(output, target, weight=1.0):
        assert output["none"] is None
        return weight * mse(output["out"], target["y"])

    make = Nested
    torch.manual_seed(3)
    x, y, bias = (torch.randn(8, WIDTH, dtype=DTYPE) for _ in range(3))
    split = [((a,), {"bias": b, "factor": 3}, {"y": c}) for a, b, c in zip(x.split(2), bias.split(2), y.split(2))]
    expected, expected_losses, _ = plain(make, 4, lambda output, target: loss_fn(output, target, 0.5), split)
    for way in ("whole", "split"):
        modules, schedule = make_schedule("Interleaved1F1B", make, 4, 4, loss_fn)
        losses = []
        for _ in range(2):
            for module in modules.values():
                module.zero_grad()
            if way == "split":
                out = schedule.step(arg_mbs=[args for args, _, _ in split], kwarg_mbs=[kwargs for _, kwargs, _ in split],
                                    target_mbs=[target for _, _, target in split], losses=losses, loss_kwargs={"weight": 0.5})
            else:
                out = schedule.step(x, bias=bias, factor=3, target={"y": y}, losses=losses, loss_kwargs={"weight": 0.5})
        assert [loss.item() for loss in losses] == ([loss.item() for loss in expected_losses] if rank == 1 else []), way
        assert_gradients(modules, dict(enumerate(expected)), exact=True)
        if rank == 1:
            assert out["none"] is None and out["out"].shape == y.shape, out
        else:
            assert out is None


class Transposed(torch.nn.Module):
    def __init__(self, index):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x, scale):  # x: [WIDTH, rows]
        return self.mlp(x.T * scale).T


def chunk_specs(rank):
    torch.manual_seed(4)
    x, y, scale = torch.randn(WIDTH, 8, dtype=DTYPE), torch.randn(8, WIDTH, dtype=DTYPE), torch.randn(1, dtype=DTYPE)
    loss_fn = lambda output, target: mse(output.T, target)  # noqa: E731
    split = [((a,), {"scale": scale}, c) for a, c in zip(x.split(2, dim=1), y.split(2))]
    expected, _, outputs = plain(Transposed, 2, loss_fn, split)
    modules, schedule = make_schedule("1F1B", Transposed, 2, 4, loss_fn, args_chunk_spec=(TensorChunkSpec(1),),
                                      kwargs_chunk_spec={"scale": None}, output_merge_spec=(TensorChunkSpec(1),))
    out = schedule.step(x, scale=scale, target=y)
    assert_gradients(modules, dict(enumerate(expected)))
    if rank == 1:
        torch.testing.assert_close(out, torch.cat(outputs, dim=1), rtol=1e-10, atol=1e-12)


def arguments_get_gradients(rank):
    x, y, split = batch(4)
    scale = torch.rand(8, WIDTH, dtype=DTYPE)

    class Scaled(torch.nn.Module):
        def __init__(self, index):
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x, scale):
            return self.mlp(x) * scale

    plain_x, plain_scale = (tensor.clone().requires_grad_() for tensor in (x, scale))
    expected = [build(Scaled, index) for index in range(2)]
    for a, s, target in zip(plain_x.split(ROWS), plain_scale.split(ROWS), y.split(ROWS)):
        (mse(expected[1](expected[0](a, s), s), target) / 4).backward()
    own_x, own_scale = (tensor.clone().requires_grad_() for tensor in (x, scale))
    modules, schedule = make_schedule("1F1B", Scaled, 2, 4)
    schedule.step(own_x * 1, scale=own_scale, target=y)
    assert_gradients(modules, dict(enumerate(expected)), exact=True)
    if rank == 0:
        torch.testing.assert_close(own_x.grad, plain_x.grad, rtol=1e-10, atol=1e-12)
    both = own_scale.grad.clone()
    dist.all_reduce(both)
    torch.testing.assert_close(both, plain_scale.grad, rtol=1e-10, atol=1e-12)


def kinds_of_stages(rank):
    """PipelineStages, one of them alone, frozen stages, parameters on "meta", a group that is not all ranks, a file and its text."""
    x, y, split = batch(4)

    def frozen(index):
        return Mlp().requires_grad_(index != 0)

    expected, _, _ = plain(frozen, 2, mse, split)
    order = "0F0,0F1,0F2,0F3,,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3\n,1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n"
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(order)
        file.flush()
        for source in ("1F1B", order, file.name):
            module = build(frozen, rank)
            stage = PipelineStage(module, rank, 2, torch.device(DEVICE), group=dist.group.WORLD)
            schedule = pw.Schedule(source, stage, 4, mse)
            schedule.step(*([x] if rank == 0 else []), target=y)
            assert_gradients({rank: module}, dict(enumerate(expected)))
    # Parameters that are made later, as torchtitan does.
    module = build(frozen, rank).to("meta")
    schedule = pw.Schedule("1F1B", PipelineStage(module, rank, 2, torch.device(DEVICE), group=dist.group.WORLD), 4, mse)
    module.to_empty(device=DEVICE)
    module.load_state_dict(build(frozen, rank).state_dict())
    schedule.step(*([x] if rank == 0 else []), target=y)
    assert_gradients({rank: module}, dict(enumerate(expected)))
    alone = dist.new_group([rank], use_local_synchronization=True)
    expected, _, _ = plain(frozen, 2, mse, split)
    modules = {index: build(frozen, index) for index in range(2)}
    schedule = pw.Schedule("Interleaved1F1B", modules, 4, mse, group=alone)
    schedule.step(x, target=y)
    assert_gradients(modules, dict(enumerate(expected)), exact=True)


def split_backward_runs_user_functions_once(rank):
    x, y, _ = batch(4, 3)
    for name, times in (("1F1B", 4), ("ZB-H1", 4)):
        Scale.backwards = 0
        _, schedule = make_schedule(name, lambda index: Encoder(), 2, 4)
        schedule.step(*([x] if rank == 0 else []), target=y)
        assert Scale.backwards == times, (name, Scale.backwards)


def gradients_add_up_over_steps(rank):
    """Of microbatches whose sizes differ by one."""
    x, y = (tensor[:7] for tensor in batch(4)[:2])
    split = [((a,), {}, b) for a, b in zip(x.tensor_split(4), y.tensor_split(4))]
    expected, _, _ = plain(lambda index: Mlp(), 2, mse, split)
    for module in expected:
        for parameter in module.parameters():
            parameter.grad *= 2
    modules, schedule = make_schedule("1F1B", lambda index: Mlp(), 2, 4)
    for _ in range(2):
        schedule.step(*([x] if rank == 0 else []), target=y)
    assert_gradients(modules, dict(enumerate(expected)))


class Recomputed(torch.nn.Module):
    """A part that stores its inputs only, with random numbers, a structure and None."""

    calls = 0

    def __init__(self, index):
        super().__init__()
        self.mlp = Mlp()

    def part(self, x, factors, none=None):
        Recomputed.calls += 1
        assert none is None
        return {"out": torch.nn.functional.dropout(self.mlp(x), 0.5) * factors[0], "none": None}

    def forward(self, x):
        found = pw.checkpoint(self.part, x, [2.0], none=None)
        assert found["none"] is None
        return found["out"]


def checkpoint_recomputes_once(rank):
    x, y, split = batch(4)
    for name in ("1F1B", "ZB-H1"):
        torch.manual_seed(11)
        modules, schedule = make_schedule(name, Recomputed, 2, 4)
        torch.manual_seed(12)
        Recomputed.calls = 0
        losses = []
        schedule.step(*([x] if rank == 0 else []), target=y, losses=losses)
        assert Recomputed.calls == 2 * 4, (name, Recomputed.calls)
        # Without checkpointing, the same random numbers give the same gradients.
        found = {n: p.grad.clone() for n, p in modules[rank].named_parameters()}
        modules[rank].zero_grad()
        plain_modules = {rank: modules[rank]}
        modules[rank].forward = lambda x, module=modules[rank]: module.part(x, [2.0])["out"]
        torch.manual_seed(12)
        schedule.step(*([x] if rank == 0 else []), target=y)
        for n, p in plain_modules[rank].named_parameters():
            assert torch.equal(p.grad, found[n]), (name, n)


def a_step_is_recorded(rank):
    x, y, _ = batch(4)
    modules, schedule = make_schedule("ZBV", lambda index: Mlp(), 4, 4)
    schedule.record()
    schedule.step(*([x] if rank == 0 else []), target=y)
    recording = schedule.recording()
    if rank == 0:
        found = json.loads(recording.to_json())
        assert found["microbatches"] == 4 and len(found["recording"]["times"]) == 2, found
        assert all(len(times) == len(row) for times, row in zip(found["recording"]["times"], found["rows"]))
        svg = recording._repr_svg_()  # in a notebook
        makespan = max(end for times in found["recording"]["times"] for _, end in filter(None, times))
        title = f"{found['name']}: 2 ranks, 4 stages, 4 microbatches; recorded, makespan {makespan:.6g} ms"
        assert title in svg and all(f">{token}" in svg for token in ("0F3", "3I0", "3W3")), svg[:3000]
    else:
        assert recording is None


def wrong_arguments(rank):
    """Errors before anything runs, on the rank that made the mistake or on all; the pipeline goes on."""

    def expect(error, text, call):
        try:
            call()
        except error as found:
            assert text in str(found), found
        else:
            raise AssertionError(f"expected {error.__name__}: {text}")

    mine, other = build(lambda index: Mlp(), rank), build(lambda index: Mlp(), 1 - rank)
    # On every rank, also if only one is wrong.
    expect(ValueError, "stage 1 does not belong to this rank, expected stages [0] on rank 0",
           lambda: pw.Schedule("1F1B", {0: mine, 1: other} if rank == 0 else {1: mine}, 4, mse))
    expect(ValueError, "loss: expected a function on the rank of the last stage, got none", lambda: pw.Schedule("1F1B", {rank: mine}, 4))
    expect(ValueError, "there is no schedule `1F2B`", lambda: pw.Schedule("1F2B", {rank: mine}, 4, mse))
    expect(ValueError, "help: move `0F1` before `0B0`", lambda: pw.Schedule("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", {rank: mine}, None, mse))
    expect(ValueError, "n_microbatches: expected 2, as in the schedule, got 4",
           lambda: pw.Schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", {rank: mine}, 4, mse))
    expect(TypeError, "stages: expected PipelineStages, or modules by index, got Mlp", lambda: pw.Schedule("1F1B", [mine], 4, mse))
    expect(TypeError, "n_microbatches: expected a whole number, got 4.0", lambda: pw.Schedule("1F1B", {rank: mine}, 4.0, mse))
    expect(ValueError, "on the CPU or a GPU of CUDA, got meta in stage", lambda: pw.Schedule("1F1B", {rank: Mlp().to("meta")}, 4, mse))

    x, y, split = batch(4)
    _, schedule = make_schedule("1F1B", lambda index: Mlp(), 2, 4)
    expect(ValueError, "arg_mbs: expected 4 microbatches, got 1", lambda: schedule.step(arg_mbs=[(x,)])) if rank == 0 else None
    expect(pw.BatchError, "rank 1, step 0: targets: expected microbatches on the rank of the last stage, got none",
           lambda: schedule.step(x) if rank == 0 else schedule.step())
    expect(pw.BatchError, "expected size 8 along dimension 0, the rows of input 0 on rank 0, got 6",
           lambda: schedule.step(x) if rank == 0 else schedule.step(target=y[:6]))
    schedule.step(x) if rank == 0 else schedule.step(target=y)


def a_schedule_is_garbage(rank):
    """A module that knows its schedule is collected with it."""
    x, y, _ = batch(4)
    modules, schedule = make_schedule("1F1B", lambda index: Mlp(), 2, 4)
    modules[rank].schedule = schedule
    schedule.step(*([x] if rank == 0 else []), target=y)
    gone = weakref.ref(modules[rank])
    del modules, schedule
    gc.collect()
    assert gone() is None


def on_two_ranks(rank):
    for body in (structures, chunk_specs, arguments_get_gradients, kinds_of_stages, split_backward_runs_user_functions_once,
                 gradients_add_up_over_steps, checkpoint_recomputes_once, a_step_is_recorded, wrong_arguments, a_schedule_is_garbage):
        if rank == 0:
            print(body.__name__, flush=True)
        body(rank)


class ScheduleTest(unittest.TestCase):
    def test_every_schedule_on_two_ranks(self):
        run_on_ranks(every_schedule_on_two_ranks, 2, start_method="fork")

    def test_every_schedule_on_four_ranks(self):
        run_on_ranks(every_schedule_on_four_ranks, 4, start_method="fork")

    def test_arguments_and_stages(self):
        run_on_ranks(on_two_ranks, 2, start_method="fork")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    unittest.main(verbosity=2)
