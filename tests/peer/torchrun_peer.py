"""train_gpt under PyTorch's torchrun: it trains as ranks that are threads do, and torchrun shows why it failed.

Run by Bazel with tag `peer`: torchrun_peer.py TRAIN_GPT.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RANKS = 2
OPTIONS = ["--pp", str(RANKS), "--layers", "2", "--dim", "32", "--context", "32", "--steps", "3", "--json"]


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--no-python",
               TRAIN_GPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def losses(output):
    return [line["loss"] for line in map(json.loads, output.splitlines()) if "loss" in line]


class TorchrunTest(unittest.TestCase):
    def test_trains_as_threads_do(self):
        options = [*OPTIONS, "--data", "docs/command_line.md"]
        threads = subprocess.run([TRAIN_GPT, *options], capture_output=True, text=True, check=True)
        processes = torchrun(*options)
        self.assertEqual(processes.returncode, 0, processes.stderr)
        self.assertEqual(len(losses(threads.stdout)), 3)
        for expected, found in zip(losses(threads.stdout), losses(processes.stdout), strict=True):
            self.assertAlmostEqual(expected, found, delta=1e-5)

    def test_the_cause_is_shown(self):
        run = torchrun(*OPTIONS, "--data", "/nowhere")
        self.assertEqual(run.returncode, 1)
        summary = run.stderr[run.stderr.index("Root Cause"):]
        self.assertIn("cannot open `/nowhere`", summary)
        self.assertNotIn("To enable traceback", summary)

    def test_pytorch_reads_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "error.json")
            run = subprocess.run([TRAIN_GPT, "--data", "/nowhere"], env={**os.environ, "TORCHELASTIC_ERROR_FILE": path},
                                 capture_output=True)
            failure = ProcessFailure(local_rank=0, pid=1, exitcode=run.returncode, error_file=path)
            self.assertEqual(failure.exitcode, 1)
            self.assertEqual(failure.message["message"], "cannot open `/nowhere`")
            self.assertGreater(failure.timestamp, 0)


if __name__ == "__main__":
    TRAIN_GPT = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=2)
