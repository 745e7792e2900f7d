"""Checks of arguments: one error that names the argument, what was expected and what was found."""

import json
import os

from . import _pipewright

_TIMES = {"forward": "forward", "backward_input": "backward_input", "backward_weight": "backward_weight", "comm": "latency"}


def whole(name, value, least=1):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected a whole number from {least} to 2147483647, got `{value!r}`")
    if not least <= value <= 2147483647:
        raise ValueError(f"{name}: expected a whole number from {least} to 2147483647, got `{value}`")
    return value


def optional_whole(name, value):
    """0 stands for None."""
    return 0 if value is None else whole(name, value)


def text(name, value):
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a text, got `{value!r}`")
    return value


def optional_positive(name, value):
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got `{value!r}`")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a number above 0, got `{value}`")
    return float(value)


def per_rank(name, value):
    """A list of one number for all ranks, or of one per rank; empty for None."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        return [optional_positive(name, value)]
    if not value:
        raise ValueError(f"{name}: expected a number, or a list with one per rank, got `{value!r}`")
    return [optional_positive(f"{name}[{rank}]", one) for rank, one in enumerate(value)]


def stages(name, value, count):
    """Different stages in ascending order."""
    if not isinstance(value, (list, tuple, range)) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
        raise TypeError(f"{name}: expected a list of stages, got `{value!r}`")
    if list(value) != sorted({*value} & {*range(count)}):
        raise ValueError(f"{name}: expected different stages from 0 to {count - 1} in ascending order, got `{list(value)}`")
    return list(value)


def factors(name, value):
    """What-if factors by cost or rank."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name}: expected a dict, got `{value!r}`")
    return {key: optional_positive(f"{name}[{key!r}]", factor) for key, factor in value.items()}


def read_file(path):
    """The text of a file, with what is not UTF-8 replaced, so that the parser can point at it."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def costs(given, times):
    """Costs from a dict or the path of a costs file, with the times that replace single ones."""
    name, values = "costs", {"version": 1}
    if isinstance(given, (str, os.PathLike)):
        name = os.fspath(given)
        content = read_file(name)
        parsed = _pipewright.costs(name, content)  # reports errors with their places in the file
        if not times:
            return parsed
        values = json.loads(content)
    elif given is not None:
        if not isinstance(given, dict):
            raise TypeError(f"costs: expected a dict or the path of a costs file, got `{given!r}`")
        values = {"version": 1, **given}
    for time, value in times.items():
        if time not in _TIMES:
            raise TypeError(f"there is no argument `{time}`; times are {', '.join(_TIMES)}")
        values[_TIMES[time]] = value
    return _pipewright.costs(name, json.dumps(values))


def policies(given):
    """Lowering policies as in a .plan file: `reduce_every=2` is `reduce-every: 2`."""

    def as_text(value):
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(map(as_text, value))
        return str(value)

    return {name.replace("_", "-"): as_text(value) for name, value in given.items()}
