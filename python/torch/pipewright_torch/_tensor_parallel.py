"""Tensors at the ends of stages with DTensor parameters.

Such stages return results of functional collectives, and so do their backwards: tensors without memory of their own, which
nobody can send before their collective has been waited for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor


def is_tensor_parallel(module: Any) -> bool:
    return isinstance(module, torch.nn.Module) and any(isinstance(parameter, DTensor) for parameter in module.parameters())


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.wait()

    @staticmethod
    def backward(ctx, grad):
        return grad


def _waited(grad: torch.Tensor) -> torch.Tensor:
    return grad.wait() if isinstance(grad, AsyncCollectiveTensor) else grad


def wait_for_gradients(inputs: list) -> None:
    """Makes the gradients of a stage's inputs plain tensors, once they are there."""
    for tensor in inputs:
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(_waited)


def waited(outputs: list) -> list:
    """The outputs of a stage as plain tensors."""
    for tensor in outputs:
        if isinstance(tensor, DTensor):
            raise TypeError("outputs of a stage: expected plain tensors, got a DTensor: return its to_local() or full_tensor()")
    return [_Waited.apply(tensor) if isinstance(tensor, AsyncCollectiveTensor) else tensor for tensor in outputs]
