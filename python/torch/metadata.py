"""The version and the requirements of pipewright-torch, for scikit-build-core (pyproject.toml).

The extension modules work with the minor version of torch that they were built for, so a wheel requires that. An sdist, built
without torch, requires any that is supported. tools/wheels sets PIPEWRIGHT_VERSION_NAMES_TORCH, so that wheels for several
versions of torch differ in their names: 0.1.0+torch2.15.
"""

import importlib.metadata
import os
import re

SUPPORTED = "torch>=2.11,<2.16"


def dynamic_metadata(field, settings, project=None):
    try:
        torch = ".".join(importlib.metadata.version("torch").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        torch = None
    if field == "dependencies":
        return [f"torch=={torch}.*" if torch else SUPPORTED]
    with open(settings["input"]) as file:
        version = re.search(r"project\(pipewright VERSION ([0-9.]+)", file.read())[1]
    return f"{version}+torch{torch}" if torch and os.environ.get("PIPEWRIGHT_VERSION_NAMES_TORCH") else version
