"""The rules of programs (`pipewright print --torch`) that the PyTorch under test reads."""

import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
RULES = "2.15" if VERSION >= (2, 15) else "2.11"
