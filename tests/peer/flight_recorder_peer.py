"""PyTorch's fr_trace reads the dumps of hangs over Gloo, and names the missing rank and the action.

Run by Bazel with tag `peer`: flight_recorder_peer.py KILL_WORKER FLIGHT_KINDS. One rank of pp 2 x dp 2 sleeps forever in an action of
step 1.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

RANKS = 4


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def hang(folder, kind, sleeping, wrap):
    port = str(free_port())
    ranks = []
    for rank in range(RANKS):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "TORCH_FR_DUMP_TEMP_FILE": os.path.join(folder, "rank_")}
        ranks.append(subprocess.Popen([KILL_WORKER, kind, str(sleeping), "1", wrap, "sleep"], env={**os.environ, **variables},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return [rank.communicate(timeout=120)[1] for rank in ranks]


class FlightRecorderTest(unittest.TestCase):
    def fr_trace(self, folder):
        run = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "rank_"],
                             capture_output=True, text=True)
        report = run.stdout + run.stderr
        self.assertEqual(run.returncode, 0, report)
        # Nothing is taken for an error but what has not been called.
        self.assertNotIn("has errors", report)
        self.assertNotIn("mismatch", report)
        return report

    def findings(self, kind, sleeping, wrap, culprit):
        """What fr_trace says of each operation that not all ranks have called, after a hang with this culprit."""
        with tempfile.TemporaryDirectory() as folder:
            errors = hang(folder, kind, sleeping, wrap)
            self.assertEqual(sorted(os.listdir(folder)), [f"rank_{rank}" for rank in range(RANKS)], errors)
            # The verdict names the cause, of which all findings are consequences.
            self.assertTrue(any(re.search(f"culprit: rank {sleeping} .* {culprit} has not ended", error) for error in errors), errors)
            return self.fr_trace(folder).split("Not all ranks joining collective")[1:]

    def expect_missing(self, findings, group, rank, collective, place):
        finding = next(one for one in findings if f"group info: {group}" in one)  # of the first operation that is missing
        self.assertIn(f"missing ranks: {{{rank}}}", finding)
        self.assertIn(f"collective: nccl:{collective}", finding)
        self.assertRegex(finding, f"collective stack trace: \\n {place}:\\d+\n")

    def test_a_missing_sender(self):
        findings = self.findings("F", 3, "shard", "`1F0`")
        self.expect_missing(findings, "edge 3->1", 3, "recv 0<-1", "action 2RECV_F0 at InterleavedZeroBubble, rank 0")

    def test_a_missing_receiver_and_a_missing_member(self):
        findings = self.findings("REDUCE_GRAD", 0, "replicate", "`2REDUCE_GRAD`")
        self.assertEqual(len(findings), 2, findings)
        self.expect_missing(findings, "edge 2->0", 0, "send 1->0", "action 1SEND_B3 at InterleavedZeroBubble, rank 1")
        self.expect_missing(findings, "mesh.dp[0,1]#0", 0, "all_reduce", "action 0W3 at InterleavedZeroBubble, rank 0")

    def test_every_kind_of_collective(self):
        with tempfile.TemporaryDirectory() as folder:
            called = subprocess.run([FLIGHT_KINDS, folder], capture_output=True, text=True, check=True).stdout.splitlines()
            self.assertEqual(len(set(called)), 17, called)
            self.assertEqual(called[:17], called[17:])
            self.assertNotIn("Not all ranks", self.fr_trace(folder))


if __name__ == "__main__":
    KILL_WORKER, FLIGHT_KINDS = map(os.path.abspath, sys.argv[1:])
    unittest.main(argv=sys.argv[:1], verbosity=2)
