"""Compares the executor with PyTorch: equal weights and data, exchanged in files, give equal losses and gradients.

Run by Bazel with tag `peer`: executor_peer.py PIPEWRIGHT WORKER. PyTorch runs the whole model, one microbatch after
another.
"""

import array
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

WIDTH, RANKS, MICROBATCHES, ROWS = 6, 2, 6, 15


def forward(stages, x):
    for w1, b1, w2, b2 in stages:
        x = torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear(x, w1, b1)), w2, b2) + x
    return x


class ExecutorPeerTest(unittest.TestCase):
    def test_every_schedule(self):
        listing = subprocess.run([PIPEWRIGHT, "list"], check=True, capture_output=True, text=True).stdout
        names = [name for name in re.findall(r"^(\S+)", listing, re.M) if name != "P" and (name[0].isupper() or name[0].isdigit())]
        self.assertEqual(len(names), 20, names)
        for name in names:
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                self.compare(name, folder)

    def compare(self, name, folder):
        header = subprocess.run([PIPEWRIGHT, "print", name, "--ranks", str(RANKS), "--microbatches", str(MICROBATCHES), "--format", "plan"],
                                check=True, capture_output=True, text=True).stdout
        num_stages = int(re.search(r"^stages: (\d+)", header, re.M).group(1))
        torch.manual_seed(3)
        shapes = [(WIDTH, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
        stages = [[torch.randn(shape, dtype=torch.double).mul_(0.4).requires_grad_() for shape in shapes] for _ in range(num_stages)]
        inputs, targets = torch.randn(2, ROWS, WIDTH, dtype=torch.double)
        values = array.array("d")
        for tensor in [*[weight for stage in stages for weight in stage], inputs, targets]:
            values.extend(tensor.detach().flatten().tolist())
        source, result = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "wb") as file:
            values.tofile(file)
        subprocess.run([WORKER, name, str(RANKS), str(MICROBATCHES), str(ROWS), str(WIDTH), source, result], check=True)

        expected = []
        for x, y in zip(inputs.tensor_split(MICROBATCHES), targets.tensor_split(MICROBATCHES)):
            loss = torch.nn.functional.mse_loss(forward(stages, x), y)
            (loss / MICROBATCHES).backward()
            expected.append(loss.detach().flatten())
        expected += [weight.grad.flatten() for stage in stages for weight in stage]
        expected = torch.cat(expected)
        found = array.array("d")
        with open(result, "rb") as file:
            found.fromfile(file, len(expected))
            self.assertEqual(file.read(), b"")
        torch.testing.assert_close(torch.tensor(found.tolist(), dtype=torch.double), expected, rtol=1e-12, atol=1e-13)


if __name__ == "__main__":
    PIPEWRIGHT, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
