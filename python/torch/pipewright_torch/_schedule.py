"""The pipeline of one rank, with the interface of torch.distributed.pipelining's schedules."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from . import _checkpoint, _data_parallel, _native, _tensor_parallel, _world
from ._errors import describe
from ._program import program_of
from ._recording import Recording
from ._values import Structure, Values

if not hasattr(torch.autograd.Function, "is_traceable"):
    # The classes of torch 2.15 have lost what its C++ code still asks them for, and a split backward asks every node.
    torch.autograd.Function.is_traceable = False

_schedules_by_ranks: dict[tuple[int, ...], int] = {}  # how many schedules each set of ranks has made


class _Stage:
    """A stage of this rank."""

    def __init__(self, index: int, module: torch.nn.Module):
        self.index = index
        self.module = module
        self.data_parallel = _data_parallel.driver_of(module)
        # FSDP2's parameters are DTensors too, but its modules take and return plain tensors.
        self.is_tensor_parallel = _tensor_parallel.is_tensor_parallel(module)
        self.inputs: dict[bool, Structure] = {}  # what the stage before returns, by whether it evaluates
        self.outputs: dict[bool, Structure] = {}


class Schedule:
    """Runs a pipeline schedule on this rank's stages, with the executor of pipewright.

        schedule = Schedule("ZBV", stages, n_microbatches=8, loss_fn=loss_fn)
        schedule.step(inputs)                          # on the rank of the first stage
        schedule.step(target=target, losses=losses)    # on the rank of the last stage

    `schedule`: a name of the catalogue, a .csv, .plan or .json file or its text, or what pipewright.make, read or search
    return. `stages`: this rank's PipelineStages, or their modules by index. `n_microbatches` may be left out if the
    schedule says it. `loss_fn(output, target)` returns the loss of a microbatch; the rank of the last stage needs it.

    The chunk and merge specs and `scale_grads` are PyTorch's. `group` is the pipeline: a process group or a mesh of one
    dimension; by default that of the PipelineStages, or all ranks. `policies` are those of `pipewright print`, with
    underscores. `split`, for all stages or by index: whether I and W are two halves of a backward; otherwise I runs all of it.
    By default not for modules with torch.compile. `same_batch`: the ranks that run the same stages on equal batches, such as
    a tensor-parallel dimension. Timeouts are in seconds: `first_timeout` is that of the first step.

    Collective over all ranks of torch.distributed's default group the first time, and later over those of the pipeline.
    Raises TypeError or ValueError if the arguments are wrong on any rank. For one thread at a time.
    """

    def __init__(self, schedule: Any, stages: Any, n_microbatches: int | None = None, loss_fn: Callable | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 scale_grads: bool = True, *, group: dist.ProcessGroup | DeviceMesh | None = None,
                 policies: dict[str, Any] | None = None, split: bool | dict[int, bool] | None = None,
                 same_batch: dist.ProcessGroup | DeviceMesh | None = None, dynamic_shapes: bool = False,
                 timeout: float | None = None, first_timeout: float | None = None):
        self._executor = None
        modules, num_stages, stage_group = _modules_of(stages)
        if n_microbatches is not None and (isinstance(n_microbatches, bool) or not isinstance(n_microbatches, int)):
            raise TypeError(f"n_microbatches: expected a whole number, got {n_microbatches!r}")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn: expected a function, got {type(loss_fn).__name__}")
        device = _device_of(modules, stages)
        world = _world.world(device)
        ranks = _ranks_of("group", stage_group if group is None else group)
        if dist.get_rank() not in ranks:
            raise ValueError(f"group: expected this rank, {dist.get_rank()}, among its ranks, got {ranks}")
        self._program = program_of(schedule, len(ranks), num_stages, n_microbatches, policies or {})
        self._stages = {index: _Stage(index, module) for index, module in modules.items()}
        self._has_first, self._has_last = 0 in modules, self._program.stages - 1 in modules
        self._loss_fn, self._loss_kwargs = loss_fn, {}
        self._args_dims = _dims_of("args_chunk_spec", args_chunk_spec)
        self._kwargs_dims = _dims_of("kwargs_chunk_spec", kwargs_chunk_spec)
        self._args: list[Values] | Values = Values(())
        self._kwargs: list[Values] | Values = Values({})
        self._target: Values | None = None
        self._evaluates, self._has_trained = False, False
        number = _schedules_by_ranks[tuple(ranks)] = _schedules_by_ranks.get(tuple(ranks), 0) + 1
        self._structures = dist.PrefixStore(f"pipewright/{ranks}/{number}", dist.distributed_c10d._get_default_store())

        # C++ code must not own what owns this object: Python's garbage collector could not see the cycle.
        this = weakref.ref(self)
        options = _native.Options()
        options.loss = functools.partial(_loss, this) if loss_fn is not None else None
        options.describe = describe
        options.ranks = ranks
        options.scale_grads = bool(scale_grads)
        options.dynamic_shapes = bool(dynamic_shapes)
        options.timeout, options.first_timeout = _seconds("timeout", timeout), _seconds("first_timeout", first_timeout)
        options.device = device
        options.output_dims = _dims_of("output_merge_spec", output_merge_spec) or []
        if same_batch is not None:
            options.same_batch = world.make_group("same_batch", _ranks_of("same_batch", same_batch))
        native_stages = [_native.Stage(index, functools.partial(_forward, this, index), _splits(split, index, stage.module),
                                       _native_data_parallel(this, index, stage.data_parallel, options.device))
                         for index, stage in self._stages.items()]
        self._executor = _native.Executor(self._program, native_stages, world, options)
        _world.track(self)

    def step(self, *args, target: Any = None, losses: list | None = None, return_outputs: bool = True,
             loss_kwargs: dict[str, Any] | None = None, arg_mbs: list[tuple] | None = None,
             kwarg_mbs: list[dict] | None = None, target_mbs: list | None = None, **kwargs) -> Any:
        """Runs a training step: all microbatches forward and backward. Collective over the pipeline.

        The arguments are PyTorch's: `args` for the first stage, `kwargs` for each stage of this rank, `target` on the rank of
        the last stage, each whole or already split (`arg_mbs`, `kwarg_mbs`, `target_mbs`). Tensors are split along dimension 0,
        or as the chunk specs say. `losses` receives the loss of each microbatch, on the rank of the last stage, which returns
        the outputs. Gradients accumulate in .grad, also those of arguments that require one.

        Raises StepError, HangError or BatchError, each on every rank.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("step() needs gradients, and runs under torch.no_grad(): call eval()")
        return self._run(False, args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)

    def eval(self, *args, target: Any = None, losses: list | None = None, return_outputs: bool = True,
             loss_kwargs: dict[str, Any] | None = None, arg_mbs: list[tuple] | None = None,
             kwarg_mbs: list[dict] | None = None, target_mbs: list | None = None, **kwargs) -> Any:
        """Runs the forward only, without gradients, of any schedule. Arguments and results are those of step().

        Without targets no loss is computed. Modules keep their mode, as in PyTorch: call module.eval() before it.
        """
        return self._run(True, args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)

    def confirm(self) -> None:
        """Returns on all ranks of the world once all have completed the step, or raises StepError on all.

        A trainer that goes on after failures calls it before optimizer.step().
        """
        self._executor.confirm()

    def reset(self) -> int:
        """After a StepError, on all ranks of the world: reconnects them. Returns the number of the step to repeat.

        Gradients must be zeroed. Blocks until all ranks have called it.
        """
        return self._executor.reset()

    def record(self, on: bool = True) -> None:
        """Starts or ends the recording of training steps: when each action runs."""
        self._executor.record(on)

    def recording(self) -> Recording | None:
        """Returns the last recorded step on the first rank of the pipeline, and None on others. Collective over the pipeline."""
        step = self._executor.recording(self._program)
        return None if step is None else Recording(step)

    def forget_shapes(self) -> None:
        """Makes the next steps learn the shapes of tensors again. All ranks call it between the same two steps."""
        self._executor.forget_shapes()

    def close(self) -> None:
        """Ends this rank's part. Runs by itself when the schedule is dropped, or the process ends."""
        if self._executor is not None:
            self._executor.close()

    # ---- a step

    def _run(self, evaluates, args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs):
        batch = {}
        # What this rank has no stage for is ignored, as in PyTorch.
        if self._has_first:
            self._args = self._values(batch, "args", "inputs", args, arg_mbs, "arg_mbs", self._args_dims)
        self._kwargs = self._values(batch, "kwargs", "extra", kwargs, kwarg_mbs, "kwarg_mbs", self._kwargs_dims)
        if self._has_first and "inputs" not in batch and "arg_mbs" not in batch and len(batch):
            batch["arg_mbs"] = [[]] * self._program.microbatches  # all that the first stage takes are kwargs
        if self._has_last:
            self._target = None
            if target is not None or target_mbs is not None:
                self._target = self._values(batch, "target", "targets", target, target_mbs, "target_mbs", None)
        self._evaluates = evaluates
        self._loss_kwargs = loss_kwargs or {}
        notices = contextlib.nullcontext() if evaluates or self._has_trained else _checkpoint.notices_second_recomputations()
        try:
            with notices:
                found, outputs, _ = self._executor.step(batch, return_outputs, evaluates)
            self._has_trained |= not evaluates
        finally:
            self._args, self._kwargs, self._target, self._loss_kwargs = Values(()), Values({}), None, {}
        if losses is not None and self._has_last:
            losses[:] = [loss for loss in found if loss is not None]
        if not return_outputs or not self._has_last:
            return None
        return self._stages[self._program.stages - 1].outputs[evaluates].value(outputs)

    def _values(self, batch, what, field, whole, microbatches, microbatches_field, dims):
        """Adds to the batch what is whole, or split; returns it, or a list of one value per microbatch."""
        if microbatches is not None:
            if whole if isinstance(whole, (tuple, dict)) else whole is not None:
                raise ValueError(f"{microbatches_field}: expected no {what} besides, got both")
            if not isinstance(microbatches, list):
                raise TypeError(f"{microbatches_field}: expected a list, got {type(microbatches).__name__}")
            if len(microbatches) != self._program.microbatches:
                raise ValueError(f"{microbatches_field}: expected {self._program.microbatches} microbatches, got {len(microbatches)}")
            split = [Values(one) for one in microbatches]
        elif dims is not None:
            split = Values(whole).split(self._program.microbatches, dims, what)
        else:
            values = Values(whole)
            if values.tensors:
                batch[field] = values.tensors
            return values
        batch[microbatches_field] = [one.tensors for one in split]
        return split

    def _forward(self, index: int, microbatch: int, tensors: list) -> list:
        stage = self._stages[index]
        if stage.is_tensor_parallel:
            _tensor_parallel.wait_for_gradients(tensors)
        kwargs = _of_microbatch(self._kwargs, microbatch)
        if index == 0:
            args = _of_microbatch(self._args, microbatch)
            arguments, rest = args.filled(tensors[:len(args.tensors)]), tensors[len(args.tensors):]
        else:
            before = stage.inputs.get(self._evaluates) or self._learn(stage)
            arguments, rest = before.arguments(tensors[:before.count]), tensors[before.count:]
        outputs, structure = Structure.of(stage.module(*arguments, **kwargs.filled(rest)), stage.outputs.get(self._evaluates))
        if structure is not stage.outputs.get(self._evaluates):
            self._publish(stage, structure)
        return _tensor_parallel.waited(outputs) if stage.is_tensor_parallel else outputs

    def _learn(self, stage: _Stage) -> Structure:
        """The structure of what the stage before returns, which has told it when it ran first."""
        structure = Structure.parse(self._structures.get(f"{stage.index - 1}/{self._evaluates}").decode())
        stage.inputs[self._evaluates] = structure
        return structure

    def _publish(self, stage: _Stage, structure: Structure) -> None:
        known = stage.outputs.get(self._evaluates)
        if known is not None:
            raise ValueError(f"outputs of stage {stage.index}: expected the structure of the first step, {known.text}, got {structure.text}")
        self._structures.set(f"{stage.index}/{self._evaluates}", structure.text)
        stage.outputs[self._evaluates] = structure

    def _loss(self, outputs: list, targets: list) -> torch.Tensor:
        output = self._stages[self._program.stages - 1].outputs[self._evaluates].value(outputs)
        target = self._target[0] if isinstance(self._target, list) else self._target
        return self._loss_fn(output, target.filled(targets), **self._loss_kwargs)


# ---- what C++ code calls


def _forward(this: weakref.ref, index: int, microbatch: int, tensors: list) -> list:
    return this()._forward(index, microbatch, tensors)


def _loss(this: weakref.ref, outputs: list, targets: list) -> torch.Tensor:
    return this()._loss(outputs, targets)


def _call_data_parallel(this: weakref.ref, index: int, method: str, *arguments) -> None:
    getattr(this()._stages[index].data_parallel, method)(*arguments)


def _native_data_parallel(this: weakref.ref, index: int, driver: Any, device: torch.device) -> _native.DataParallel | None:
    if driver is None:
        return None
    methods = {name for name in _data_parallel.METHODS if hasattr(driver, name)}
    group = getattr(driver, "group", None)
    if isinstance(group, dist.ProcessGroup):
        group = group._get_backend(device)
    elif isinstance(group, list):
        group = _world.world(device).make_group("data_parallel", group)
    return _native.DataParallel(functools.partial(_call_data_parallel, this, index), methods, group, getattr(driver, "frees_parameters", False))


# ---- arguments


def _modules_of(stages: Any) -> tuple[dict[int, torch.nn.Module], int | None, dist.ProcessGroup | None]:
    """The modules by index of the stage, the number of all stages, and the pipeline's group; None where `stages` do not say."""
    if isinstance(stages, dict):
        modules, num_stages, group = dict(stages), None, None
    else:
        stages = list(stages) if isinstance(stages, (list, tuple)) else [stages]
        for stage in stages:
            if not hasattr(stage, "submod") or not hasattr(stage, "stage_index"):
                raise TypeError(f"stages: expected PipelineStages, or modules by index, got {type(stage).__name__}")
        modules = {stage.stage_index: stage.submod for stage in stages}
        if not modules or len(modules) < len(stages):
            raise ValueError(f"stages: expected one PipelineStage per stage of this rank, got {[stage.stage_index for stage in stages]}")
        num_stages, group = stages[0].num_stages, stages[0].group
    for index, module in modules.items():
        if isinstance(index, bool) or not isinstance(index, int) or not callable(module):
            raise TypeError(f"stages: expected modules by index, got {type(module).__name__} at {index!r}")
    return dict(sorted(modules.items())), num_stages, group


def _ranks_of(what: str, group: dist.ProcessGroup | DeviceMesh | None) -> list[int]:
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"{what}: expected a mesh of one dimension, got {group.ndim}: take one by its name")
        group = group.get_group()
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def _device_of(modules: dict[int, torch.nn.Module], stages: Any) -> torch.device:
    """The device of the modules' parameters; where there are none, or none yet (on "meta"), that of the PipelineStages."""
    found: dict[torch.device, int] = {}
    for index, module in modules.items():
        for tensor in module.parameters() if isinstance(module, torch.nn.Module) else ():
            # FSDP2 may keep its shards elsewhere.
            found.setdefault(_whole(tensor.device_mesh.device_type if isinstance(tensor, DTensor) else tensor.device), index)
    of_stages = [_whole(stage.device) for stage in pytree.tree_leaves(stages) if hasattr(stage, "submod")]
    if of_stages:
        found.pop(torch.device("meta"), None)
    if len(found) > 1:
        (first, of_first), (other, of_other) = list(found.items())[:2]
        raise ValueError(f"stages: expected all parameters on one device, got {first} in stage {of_first} and {other} in stage {of_other}")
    device = next(iter(found or of_stages), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"stages: expected parameters on the CPU or a GPU of CUDA, got {device} in stage {found.get(device, next(iter(modules)))}")
    return device


def _whole(device: torch.device | str) -> torch.device:
    """With the index of the GPU."""
    device = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _dims_of(what: str, spec: Any) -> list[int | None] | None:
    """The dimension of each TensorChunkSpec; None for what is not split. `spec` may be None: no spec."""
    if spec is None:
        return None
    dims = []
    for leaf in pytree.tree_leaves(spec):
        if hasattr(leaf, "split_dim"):
            dims.append(leaf.split_dim)
        elif leaf is None or type(leaf).__name__ == "_Replicate":
            dims.append(None)
        else:
            raise TypeError(f"{what}: expected TensorChunkSpecs and None, got {type(leaf).__name__}")
    return dims


def _seconds(what: str, value: float | None) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{what}: expected seconds above 0, got {value!r}")
    return float(value)


def _splits(split: bool | dict[int, bool] | None, index: int, module: Any) -> bool:
    if isinstance(split, dict):
        split = split.get(index)
    return not _is_compiled(module) if split is None else bool(split)


def _is_compiled(module: Any) -> bool:
    """Whether torch.compile has made part of it one node, whose backward cannot be split."""
    parts = module.modules() if isinstance(module, torch.nn.Module) else [module]
    return any(type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None for part in parts)


def _of_microbatch(values: list[Values] | Values, microbatch: int) -> Values:
    return values[microbatch] if isinstance(values, list) else values
