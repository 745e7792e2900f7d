"""A measured step."""

from __future__ import annotations

import os

from . import _native


class Recording:
    """When each action of a step ran on each rank, with the program, as `pipewright print` and pipewright.read take it."""

    def __init__(self, step: _native.RecordedStep):
        self._step = step

    def to_json(self) -> str:
        return self._step.json()

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .json file: `pipewright print FILE --format html` draws it."""
        temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(self.to_json())
        os.replace(temporary, path)

    def _repr_svg_(self) -> str:  # in a notebook
        return self._step.svg()
