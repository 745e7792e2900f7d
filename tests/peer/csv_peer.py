"""CSV files round-trip between pipewright and PyTorch, whose own runtime, parser, lowering and table are the reference.

Run by Bazel with tag `peer`: csv_peer.py PIPEWRIGHT FOLDER_OF_ORDERS
"""

import csv
import glob
import os
import subprocess
import sys
import tempfile
import unittest

from torch.distributed.pipelining import schedules as peer

from stage_stub import Stage
from versions import RULES

PIPEWRIGHT, ORDERS = sys.argv[1], sys.argv[2]


def pipewright(*words, expected=0):
    done = subprocess.run([PIPEWRIGHT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != expected:
        raise AssertionError(
            f"pipewright {words}: expected exit {expected}, got {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode()


def runtime(path, level):
    """PyTorch's runtime, with a schedule file loaded by its own reader."""
    with open(path) as file:
        rows = [row.rstrip("\r\n").split(",") for row in file]
    actions = [peer._Action.from_str(cell) for row in rows for cell in row if cell]
    leaves = [leaf for action in actions for leaf in (action.sub_actions or [action])]
    num_stages = 1 + max(leaf.stage_index for leaf in leaves)
    microbatches = 1 + max(leaf.microbatch_index or 0 for leaf in leaves)
    schedule = peer._PipelineScheduleRuntime([Stage(0, num_stages, len(rows))], microbatches)
    schedule._load_csv(path, level)
    return schedule


def lowering_of(order):
    """The file with the lowering of the PyTorch under test."""
    if RULES == "2.11":
        return order.replace(".csv", "_comms.csv")
    return os.path.join(ORDERS, "torch_2.15", os.path.basename(order))


class CsvPeerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)
        # PyTorch's own orders are those with a lowering: it has no schedule with replicas or slices.
        self.compute = sorted(p for p in glob.glob(ORDERS + "/*.csv") if os.path.exists(p.replace(".csv", "_comms.csv")))
        self.assertEqual(len(self.compute), 24)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_pytorch_loads_what_we_print(self):
        for order in self.compute:
            for path, level in ((order, "compute_only"), (lowering_of(order), "compute_comms")):
                with self.subTest(path):
                    # Via a .plan, so that the text of the file is not just copied.
                    plan, printed = self.path("a.plan"), self.path("a.csv")
                    pipewright("print", path, "--format", "plan", "-o", plan)
                    pipewright("print", plan, "--format", "csv", "-o", printed)
                    ours, theirs = runtime(printed, level), runtime(path, level)
                    self.assertEqual(ours.pipeline_order_with_comms, theirs.pipeline_order_with_comms)
                    self.assertEqual(ours.stage_index_to_group_rank, theirs.stage_index_to_group_rank)

    def test_we_read_what_pytorch_dumps(self):
        for order in self.compute:
            with self.subTest(order):
                schedule = runtime(order, "compute_only")
                dumped = self.path("dumped.csv")
                schedule._dump_csv(dumped, "compute_comms")
                with open(dumped, newline="") as file:
                    self.assertEqual(pipewright("print", dumped, "--format", "csv"), file.read())
                pipewright("validate", dumped)

    def test_table_matches_pytorch(self):
        for order in self.compute:
            with self.subTest(order):
                with open(order, newline="") as file:
                    rows = {r: [peer._Action.from_str(c) for c in row] for r, row in enumerate(csv.reader(file))}
                theirs = peer._format_pipeline_order(rows)
                ours = pipewright("print", order)
                # PyTorch pads the step labels differently, so compare only the cells.
                self.assertEqual([line.split() for line in ours.splitlines()],
                                 [line.split() for line in theirs.splitlines()])

    def test_we_reject_what_pytorch_silently_changes(self):
        for text, back, rule in (("1F0xyz", "1F0", "PW006"), ("0BW0", "0B", "PW003"), ("0F", "0F", "PW004"),
                                 ("1UNSHARD3", "1UNSHARD3", "PW005"), ("00F01", "0F1", "PW007"),
                                 ("()OVERLAP_F_B", "-1OVERLAP_F_B", "PW010"), ("1F0 1F1", "1F0", "PW006")):
            with self.subTest(text):
                self.assertEqual(str(peer._Action.from_str(text)), back)
                bad = self.path("bad.csv")
                with open(bad, "w") as file:
                    file.write(text + "\n")
                self.assertIn(f'"code": "{rule}"', pipewright("validate", bad, "--json", expected=1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
