"""The version of torch. Its C++ interface changes with each minor version, so an extension module serves one."""

import os
import re

import torch

_MARK = re.compile(rb"pipewright_torch is built for torch (\d+\.\d+)\0")


def check() -> None:
    """Raises ImportError unless the extension module, which is not loaded for this, was built for the installed torch."""
    installed = ".".join(torch.__version__.split(".")[:2])
    path = os.path.join(os.path.dirname(__file__), "_native.so")
    with open(path, "rb") as file:
        found = _MARK.search(file.read())
    built = found[1].decode() if found else "an unknown version"
    if built != installed:
        raise ImportError(f"pipewright_torch was built for torch {built}, and torch {torch.__version__} is installed; reinstall it: "
                          "pip install --force-reinstall --no-deps --no-build-isolation pipewright-torch", path=path)
