"""Activation checkpointing that recomputes once, also under a split backward."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable

from torch.utils import checkpoint as torch_checkpoint

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


@contextlib.contextmanager
def notices_second_recomputations():
    """Warns once if a torch.utils.checkpoint(use_reentrant=False) of this context recomputes twice, as both halves of a
    split backward make it do."""
    hook = getattr(torch_checkpoint, "_checkpoint_hook", None)  # private: without it there is no notice
    if hook is None:
        yield
        return
    warned = False

    class Counting(hook):
        def __init__(self, frame, *args, **kwargs):
            recompute, calls = frame.recompute_fn, 0

            def counted(*inputs):
                nonlocal calls, warned
                calls += 1
                if calls == 2 and not warned:
                    warned = True
                    warnings.warn("torch.utils.checkpoint recomputes twice, as the backward is split into I and W; pipewright_torch.checkpoint "
                                  "recomputes once, and a Schedule with split=False has whole backwards", stacklevel=2)
                return recompute(*inputs)

            frame.recompute_fn = counted
            super().__init__(frame, *args, **kwargs)

    torch_checkpoint._checkpoint_hook = Counting
    try:
        yield
    finally:
        torch_checkpoint._checkpoint_hook = hook
