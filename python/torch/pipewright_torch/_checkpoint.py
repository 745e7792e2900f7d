"""Activation checkpointing that recomputes once, also under a split backward."""

from __future__ import annotations

from typing import Any, Callable

from . import _native
from ._values import Structure, Values


def checkpoint(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Returns function(*args, **kwargs), and stores only its inputs: its backward runs it again.

    Where torch.utils.checkpoint recomputes in both halves of a split backward, this recomputes in I, and keeps what W reads.
    The second call starts with the same state of random generators and of autocast. Outputs are tensors and None, in any
    structure. Not for backwards of backwards.
    """
    values = Values((args, kwargs))
    tensors, values.tensors = values.tensors, []  # the graph keeps them as long as it needs them
    structure = None

    def run(inputs: list) -> list:
        nonlocal structure
        run_args, run_kwargs = values.filled(inputs)
        outputs, structure = Structure.of(function(*run_args, **run_kwargs), structure)
        return outputs

    outputs = _native.checkpoint(run, tensors)
    return structure.value(outputs)
