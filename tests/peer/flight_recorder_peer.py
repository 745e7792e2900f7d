"""PyTorch's fr_trace reads the dumps of a hang over Gloo, and names the missing rank and the action.

Run by Bazel with tag `peer`: flight_recorder_peer.py KILL_WORKER. Rank 3 of pp 2 x dp 2 sleeps forever in `1F0` of step 1.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

RANKS, SLEEPING = 4, 3


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def hang(folder):
    port = str(free_port())
    ranks = []
    for rank in range(RANKS):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "TORCH_FR_DUMP_TEMP_FILE": os.path.join(folder, "rank_")}
        ranks.append(subprocess.Popen([KILL_WORKER, "F", str(SLEEPING), "1", "shard", "sleep"], env={**os.environ, **variables},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return [rank.communicate(timeout=120)[1] for rank in ranks]


class FlightRecorderTest(unittest.TestCase):
    def test_fr_trace_names_the_rank_and_the_action(self):
        with tempfile.TemporaryDirectory() as folder:
            errors = hang(folder)
            self.assertEqual(sorted(os.listdir(folder)), [f"rank_{rank}" for rank in range(RANKS)], errors)
            run = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "rank_"],
                                 capture_output=True, text=True)
            report = run.stdout + run.stderr
            self.assertEqual(run.returncode, 0, report)
            findings = report.split("Not all ranks joining collective")[1:]
            receives = [one for one in findings if "edge 3->1" in one]
            self.assertTrue(receives, report)
            self.assertIn("missing ranks: {3}", receives[0])
            self.assertIn("collective: nccl:recv", receives[0])
            self.assertRegex(receives[0], r"action 2RECV_F0 at InterleavedZeroBubble, rank 0:\d+")
            # Nothing is taken for an error but what has not been called.
            self.assertNotIn("has errors", report)
            # The verdict names the cause, of which all of these are consequences.
            self.assertTrue(any(re.search(r"culprit: rank 3 .* `1F0` has not ended", error) for error in errors), errors)


if __name__ == "__main__":
    KILL_WORKER = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=2)
