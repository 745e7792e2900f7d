"""examples/python/train_llama.py, as its users run it: every kind of parallelism trains the same model.

Run by Bazel with tag `peer`: train_llama_test.py PROGRAM TEXT.
"""

import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM, TEXT = sys.argv[1:3]


def losses(ranks, *arguments):
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
                          "--rdzv-endpoint", "localhost:0", PROGRAM, "--data", TEXT, "--batch", "4", *arguments],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", run.stdout)}


class TrainLlamaTest(unittest.TestCase):
    def assert_same(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for step, loss in found.items():
            self.assertAlmostEqual(loss, expected[step], delta=2e-3, msg=f"step {step}")

    def test_every_parallelism_trains_the_same_model(self):
        expected = losses(1, "--pp", "1", "--schedule", "GPipe", "--steps", "6")
        self.assertEqual(len(expected), 6)
        self.assertLess(expected[5], expected[0] - 1)
        self.assert_same(losses(2, "--pp", "2", "--steps", "6", "--compile", "aot_eager", "--schedule", "ZB-H1"), expected)
        with tempfile.TemporaryDirectory() as folder:
            begun = losses(4, "--pp", "2", "--tp", "2", "--schedule", "ZBV", "--stages-per-rank", "2", "--checkpoint", "--steps", "3",
                           "--save", f"{folder}/3", "--record", f"{folder}/step.json")
            self.assert_same(begun, {step: expected[step] for step in range(3)})
            # A resumed run need not be split in the same way.
            resumed = losses(2, "--pp", "2", "--resume", f"{folder}/3", "--steps", "6")
            self.assert_same(resumed, {step: expected[step] for step in range(3, 6)})
            page = subprocess.run(["cli/pipewright", "print", f"{folder}/step.json"], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertIn("0F0", page)

    def test_shards_resume_in_tensor_parallel(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = "--pp", "2", "--steps", "4"
            losses(4, "--dp", "2", "--pp", "2", "--steps", "3", "--save", f"{folder}/3")
            self.assert_same(losses(4, *flags, "--tp", "2", "--resume", f"{folder}/3"), losses(2, *flags, "--resume", f"{folder}/3"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
