"""train_gpt under PyTorch's torchrun: it trains as ranks that are threads do, and torchrun shows why it failed.

Run by Bazel with tag `peer`: torchrun_peer.py TRAIN_GPT.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RANKS = 2
OPTIONS = ["--pp", str(RANKS), "--layers", "2", "--dim", "32", "--context", "32", "--json"]
STEPS = ["--steps", "3"]


def command_of(*arguments):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--no-python", TRAIN_GPT,
            *arguments]


def torchrun(*arguments):
    return subprocess.run(command_of(*arguments), capture_output=True, text=True, timeout=240)


def process_of(parent, rank):
    """The process that torchrun's agent, `parent`, started as this rank."""
    with open(f"/proc/{parent}/task/{parent}/children") as children:
        for child in children.read().split():
            with open(f"/proc/{child}/environ") as environ:
                if f"RANK={rank}" in environ.read().split("\0"):
                    return int(child)
    raise RuntimeError(f"torchrun has no rank {rank}")


def losses(output):
    return [line["loss"] for line in map(json.loads, output.splitlines()) if "loss" in line]


class TorchrunTest(unittest.TestCase):
    def test_trains_as_threads_do(self):
        options = [*OPTIONS, *STEPS, "--data", "docs/command_line.md"]
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

    def test_a_killed_rank(self):
        job = subprocess.Popen(command_of(*OPTIONS, "--data", "docs/command_line.md", "--steps", "1000000"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        for _ in range(3):
            self.assertIn("loss", job.stdout.readline())
        os.kill(process_of(job.pid, 1), signal.SIGKILL)
        _, errors = job.communicate(timeout=240)
        self.assertEqual(job.returncode, 1)
        cause = errors[errors.index("Root Cause"):]
        self.assertRegex(cause, r"rank +: 1 ")
        self.assertIn("Signal 9 (SIGKILL)", cause)

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
