"""Schedules in any form, as programs that the executor runs."""

from __future__ import annotations

import os
from typing import Any

from . import _native

_EXTENSIONS = (".csv", ".plan", ".json")


def program_of(schedule: Any, ranks: int, stages: int | None, microbatches: int | None, policies: dict[str, Any]) -> _native.Program:
    """Compiles a schedule, and proves it. Raises ValueError with all diagnostics, or if the shape is another one."""
    policies = {name.replace("_", "-"): _text(value) for name, value in policies.items()}
    schedule = getattr(schedule, "schedule", schedule)  # of a search's result
    if hasattr(schedule, "to_json"):
        program = _native.Program.read("schedule.json", schedule.to_json(), policies)
    elif isinstance(schedule, str) and "\n" in schedule:
        program = _native.Program.read("<text>", schedule, policies)
    elif isinstance(schedule, os.PathLike) or isinstance(schedule, str) and schedule.endswith(_EXTENSIONS):
        with open(schedule, encoding="utf-8", errors="replace", newline="") as file:
            program = _native.Program.read(os.fspath(schedule), file.read(), policies)
    elif isinstance(schedule, str):
        if microbatches is None:
            raise TypeError(f"n_microbatches: expected a number for the schedule `{schedule}`, got None")
        return _native.Program.make(schedule, ranks, stages or 0, microbatches, policies)
    else:
        raise TypeError("schedule: expected a name, a .csv, .plan or .json file or its text, or what pipewright.make, read or search "
                        f"return, got {type(schedule).__name__}")
    for what, expected, got in (("ranks", ranks, program.ranks), ("stages", stages, program.stages),
                                ("n_microbatches", microbatches, program.microbatches)):
        if expected is not None and expected != got:
            raise ValueError(f"{what}: expected {got}, as in the schedule, got {expected}")
    return program


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value)
