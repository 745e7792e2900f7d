"""Values with tensors in them, such as the arguments and outputs of a stage, as flat lists of tensors and back."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


class Values:
    """A value of any structure. Its tensors pass through the executor; what else is in it stays here.

    >>> values = Values(((x, {"mask": mask}), 3))
    >>> values.tensors
    [x, mask]
    >>> values.filled([a, b])
    ((a, {'mask': b}), 3)
    """

    __slots__ = ("_leaves", "_places", "_spec", "tensors")

    def __init__(self, value: Any):
        leaves, self._spec = pytree.tree_flatten(value)
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [leaves[place] for place in self._places]
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def filled(self, tensors: list) -> Any:
        """Returns the value with other tensors, as many as it has."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self._spec)

    def split(self, count: int, dims: list | None, what: str) -> list[Values]:
        """Returns one value per microbatch. `dims`: per leaf, the dimension to split, or None for one that each receives whole."""
        if len(dims) != len(self._leaves):
            raise ValueError(f"{what}: expected {len(dims)} values, as in its chunk spec, got {len(self._leaves)}")
        parts = [list(self._leaves) for _ in range(count)]
        for place, tensor in zip(self._places, self.tensors):
            dim = dims[place]
            if dim is not None and (not -tensor.dim() <= dim < tensor.dim() or tensor.size(dim) < count):
                raise ValueError(f"{what}: expected at least {count} rows along dimension {dim}, got {list(tensor.shape)}")
            chunks = [tensor] * count if dim is None else tensor.tensor_split(count, dim)
            for part, chunk in zip(parts, chunks):
                part[place] = chunk
        return [Values(pytree.tree_unflatten(part, self._spec)) for part in parts]


class Structure:
    """The structure of a stage's outputs, whose leaves are tensors and None. It travels to the next stage as text."""

    __slots__ = ("_spec", "count", "text")
    _TENSOR = "tensor"

    def __init__(self, spec: pytree.TreeSpec | None):
        """`spec` is None for a single tensor."""
        self._spec = spec
        self.count = 1 if spec is None else spec.num_leaves
        self.text = self._TENSOR if spec is None else pytree.treespec_dumps(spec)

    @classmethod
    def parse(cls, text: str) -> Structure:
        return cls(None if text == cls._TENSOR else pytree.treespec_loads(text))

    @classmethod
    def of(cls, outputs: Any, known: Structure | None) -> tuple[list, Structure]:
        """Returns the leaves of `outputs`, and their structure: `known` if it is that."""
        if isinstance(outputs, torch.Tensor):
            return [outputs], known if known and known._spec is None else cls(None)
        leaves, spec = pytree.tree_flatten(outputs)
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, torch.Tensor):
                raise TypeError(f"outputs of a stage: expected tensors and None, got {type(leaf).__name__}")
        return leaves, known if known and known._spec == spec else cls(spec)

    def value(self, tensors: list) -> Any:
        """The outputs, as the stage returned them."""
        return tensors[0] if self._spec is None else pytree.tree_unflatten(tensors, self._spec)

    def arguments(self, tensors: list) -> tuple:
        """The outputs as arguments of the next stage: a tuple or a list is several."""
        value = self.value(tensors)
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)
