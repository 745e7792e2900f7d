"""PyTorch's data parallelism under a pipeline, found by the type of a stage's module.

A driver has the methods of DataParallel that it needs (modules/data_parallel.h), which the actions UNSHARD, RESHARD and
REDUCE_GRAD of the program call; `group`, over which it reduces, or its ranks; and `frees_parameters`. A module that is none of PyTorch's
wrappers may be its own driver, by an attribute `pipeline_data_parallel`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.nn.parallel import DistributedDataParallel

METHODS = ("step_begins", "unshard", "wait_unshard", "reshard", "before_backward", "after_last_backward", "reduce_grad",
           "wait_reduce", "abort")


def driver_of(module: Any) -> Any:
    """The driver of a stage's module, or None if no other rank has its parameters."""
    own = getattr(module, "pipeline_data_parallel", None)
    if own is not None or not isinstance(module, torch.nn.Module):
        return own
    if isinstance(module, DistributedDataParallel):
        return Ddp(module)
    roots = _roots_of(module)
    if roots:
        return Fsdp(roots)
    if _ddp_state_of(module) is not None:
        return ReplicateByDdp(module)
    return None


def _roots_of(module: torch.nn.Module) -> list[FSDPModule]:
    """The outermost modules of fully_shard, and of the replicate() that is built on it."""
    if isinstance(module, FSDPModule):
        return [module]
    return [root for child in module.children() for root in _roots_of(child)]


class Fsdp:
    """fully_shard and HSDP of FSDP2: gradients accumulate unsharded until REDUCE_GRAD.

    Before torch 2.15, FSDP2 moves them into reduce_dtype in a hook of I. A W adds to them after that hook, so each backward
    begins by moving what the last one has added: otherwise the sum over microbatches would be in param_dtype.
    """

    frees_parameters = True

    def __init__(self, roots: list[FSDPModule]):
        self._roots = roots
        self._units = [unit for root in roots for unit in root.modules() if isinstance(unit, FSDPModule)]
        self._gathers, self._reductions = [], []
        self._mixed = []
        self._finalizes = all(hasattr(root, "finalize_backward") for root in roots)  # since torch 2.15
        for root in roots:
            self._set_sync(root, False)
        self.group = _group_of(self._units)

    def _param_groups(self) -> list:
        return [group for unit in self._units for group in _param_groups_of(unit)]

    def _set_sync(self, root: FSDPModule, on: bool) -> None:
        root.set_requires_gradient_sync(on)
        root.set_reshard_after_backward(on)
        if not self._finalizes:
            root.set_is_last_backward(on)

    def step_begins(self) -> None:
        parameters = [parameter for group in self._param_groups() for parameter in group.fsdp_params]
        self._mixed = [parameter for parameter in parameters if hasattr(parameter, "to_accumulated_grad_if_needed")
                       and parameter.mp_policy.reduce_dtype]
        for root in self._roots:
            self._set_sync(root, False)
            if self._finalizes:
                root.set_manual_backward_finalization(True)

    def unshard(self) -> None:
        self._gathers = [unit.unshard(async_op=True) for unit in self._units]

    def wait_unshard(self) -> None:
        for gather in self._gathers:
            if gather is not None:
                gather.wait()
        self._gathers = []

    def reshard(self) -> None:
        for unit in self._units:
            unit.reshard()

    def before_backward(self, microbatch: int, last: bool) -> None:
        for parameter in self._mixed:
            if hasattr(parameter, "_unsharded_param"):
                parameter.accumulate_unsharded_grad_if_needed()
                parameter.to_accumulated_grad_if_needed()

    def reduce_grad(self) -> None:
        for root in self._roots:
            self._set_sync(root, True)
            if self._finalizes:
                for group in self._param_groups():
                    # finalize_backward() leaves out what was reduced. But where the loss reduces a unit in a backward of its own, W
                    # adds to it after that.
                    group._post_backward_pending |= any(parameter.unsharded_param.grad is not None for parameter in group.fsdp_params
                                                        if hasattr(parameter, "_unsharded_param"))
                self._reductions.append(root.finalize_backward(async_op=True))
                continue
            state = root._get_fsdp_state()
            for one in state._state_ctx.all_states:
                if one._fsdp_param_group:
                    one._fsdp_param_group.post_backward()
            state._root_post_backward_final_callback()

    def wait_reduce(self) -> None:
        for reduction in self._reductions:
            reduction.wait()
        self._reductions = []
        for root in self._roots:
            self._set_sync(root, False)
            if self._finalizes:
                root.set_manual_backward_finalization(False)

    def abort(self) -> None:
        """Drops what the step was doing. Otherwise some ranks would find parameters gathered in the next one, and others not."""
        self._gathers, self._reductions = [], []
        for group in self._param_groups():
            group._all_gather_result = None  # its collective was aborted: nobody waits for it
            group._training_state = TrainingState.IDLE
            # Before torch 2.15, reset_iter_state() leaves what was not reduced.
            for parameter in group.fsdp_params if not self._finalizes else ():
                parameter.unsharded_accumulated_grad = None
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None
        for root in self._roots:
            if hasattr(root, "reset_iter_state"):  # since torch 2.13
                root.reset_iter_state()
            else:
                _reset_iteration(root)
        self.reshard()


def _reset_iteration(root: FSDPModule) -> None:
    """Makes FSDP2 forget a step that failed. Otherwise ranks would prefetch by orders of forwards that differ."""
    state = root._get_fsdp_state()
    state._comm_ctx.post_forward_order.clear()
    state._comm_ctx.all_gather_state = state._comm_ctx.reduce_scatter_state = None
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
    for unit in (module for module in root.modules() if isinstance(module, FSDPModule)):
        unit._get_fsdp_state()._training_state = TrainingState.IDLE
        unit._get_fsdp_state()._modules_to_run_forward.clear()
        for group in _param_groups_of(unit):
            group._post_forward_indices.clear()
            group._partial_reduce_output = None


class Ddp:
    """DistributedDataParallel: the last backward of a stage arms its reducer, whose hooks run where gradients accumulate."""

    def __init__(self, module: DistributedDataParallel):
        self._module = module
        self.group = module.process_group

    def step_begins(self) -> None:
        self._module.require_backward_grad_sync = False  # forwards do not arm it

    def before_backward(self, microbatch: int, last: bool) -> None:
        if last:
            self._module.reducer.prepare_for_backward([])

    def abort(self) -> None:
        _reset_ddp(self._module)


class ReplicateByDdp:
    """torch.distributed._composable.replicate over DDP.

    It would make its DDP in the first forward. A failure there would leave a rank with half of it, so it is made before.
    """

    group = None

    def __init__(self, module: torch.nn.Module):
        self._state = _ddp_state_of(module)
        if self._state._init_args:
            self._state.lazy_init()

    def step_begins(self) -> None:
        self._state._no_sync = True

    def before_backward(self, microbatch: int, last: bool) -> None:
        if last:
            self._state._ddp.reducer.prepare_for_backward([])

    def abort(self) -> None:
        _reset_ddp(self._state._ddp)


def _reset_ddp(module: DistributedDataParallel) -> None:
    """As _update_process_group() does. A rank whose backward ended has buckets to rebuild, which is collective; others do not."""
    module._has_rebuilt_buckets = False
    module.reducer._reset_state()


def _ddp_state_of(module: torch.nn.Module) -> Any:
    with contextlib.suppress(ImportError, AttributeError, KeyError):
        from torch.distributed._composable.replicate import replicate
        state = replicate.state(module)
        return state if hasattr(state, "_no_sync") else None
    return None


def _param_groups_of(unit: FSDPModule) -> list:
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # several per unit since torch 2.12
    return list(groups) if groups is not None else [group for group in (state._fsdp_param_group,) if group]


def _group_of(units: list[FSDPModule]) -> Any:
    """The group of the ranks that step together; of HSDP, which has a group to shard and one to replicate, all of its ranks."""
    for unit in units:
        for group in _param_groups_of(unit):
            info = group.mesh_info
            shards, replicates = (getattr(info, f"{kind}_process_group", None) for kind in ("shard", "replicate"))
            if shards and replicates and info.mesh.ndim == 2:
                return info.mesh.mesh.flatten().tolist()
            return shards or replicates
    return None
