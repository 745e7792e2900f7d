"""Compares mixed precision in replicate() with PyTorch's: equal weights and data, exchanged in files, give equal gradients.

Run by Bazel with tag `peer`: replicate_peer.py WORKER. Both sides accumulate two microbatches on two ranks and average.
"""

import array
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import MixedPrecisionPolicy
from versions import RULES

RANKS, MICROBATCHES, ROWS, WIDTH = 2, 2, 5, 8
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "none": None}


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def make_inputs():
    return torch.randn(RANKS, MICROBATCHES, ROWS, WIDTH, generator=torch.Generator().manual_seed(4))


def run_rank(rank, folder, param, reduce):
    model = make_model()
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[param], reduce_dtype=DTYPES[reduce])
    mesh = dist.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("replicate",))
    for module in (model[0], model):
        replicate(module, mesh=mesh, mp_policy=policy)
    for i, x in enumerate(make_inputs()[rank]):
        model.set_requires_gradient_sync(i == MICROBATCHES - 1)
        model(x).float().square().sum().backward()
    if rank == 0:
        grads = [weight.grad.to_local() for weight in model.parameters()]
        assert all(grad.dtype == torch.float32 for grad in grads)
        torch.save(torch.cat([grad.flatten() for grad in grads]), f"{folder}/expected")


def added_in_bf16():
    """The gradients of fp32 parameters, each added to a sum in bf16 and rounded with it, as PyTorch did until 2.14 and we do."""
    sums = []
    for inputs in make_inputs():
        total = None
        for x in inputs:
            model = make_model()
            model(x).square().sum().backward()
            gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
            total = gradient.bfloat16() if total is None else (total + gradient).bfloat16()
        sums.append(total)
    return (sum(sums) / RANKS).float()


class ReplicatePeerTest(unittest.TestCase):
    def test_gradients(self):
        for param, reduce in (("none", "none"), ("bf16", "fp32"), ("bf16", "bf16"), ("bf16", "none"), ("none", "bf16")):
            with self.subTest(param=param, reduce=reduce), tempfile.TemporaryDirectory() as folder:
                run_on_ranks(run_rank, RANKS, folder, param, reduce)
                expected = torch.load(f"{folder}/expected")
                # 2.15 rounds each gradient before it adds them.
                if RULES == "2.15" and (param, reduce) == ("none", "bf16"):
                    expected = added_in_bf16()
                source, result = os.path.join(folder, "in"), os.path.join(folder, "out")
                values = array.array("f")
                for tensor in [*make_model().parameters(), make_inputs()]:
                    values.extend(tensor.detach().flatten().tolist())
                with open(source, "wb") as file:
                    values.tofile(file)
                subprocess.run([WORKER, param, reduce, source, result], check=True)
                found = array.array("f")
                with open(result, "rb") as file:
                    found.fromfile(file, len(expected))
                    self.assertEqual(file.read(), b"")
                # One rounding of a sum in another order.
                tolerance = 1e-6 if reduce == "fp32" or param == "none" == reduce else 8e-3
                torch.testing.assert_close(torch.tensor(found.tolist()), expected, rtol=tolerance, atol=tolerance / 100)


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
