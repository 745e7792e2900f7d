"""Compares compute orders and lowerings with PyTorch's schedule classes over a wide range of shapes.

Run by Bazel with tag `peer`: schedules_peer.py PIPEWRIGHT. GPipe and 1F1B are excluded, because PyTorch does not
execute the orders that it exports for them.
"""

import subprocess
import sys
import unittest

from torch.distributed.pipelining import schedules as peer

from stage_stub import Stage

PIPEWRIGHT = sys.argv[1]

# (stages per rank, microbatches, ranks): the list in PyTorch's test_pipeline_order, and shapes between its cases.
SHAPES = [(2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8), (4, 16, 4), (4, 32, 4),
          (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64), (3, 2, 2), (3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5),
          (2, 3, 4), (2, 4, 4), (2, 10, 4), (2, 15, 4),
          (1, 1, 1), (1, 5, 3), (2, 1, 1), (2, 1, 5), (2, 7, 3), (2, 9, 5), (2, 11, 3), (2, 13, 6), (3, 7, 5), (2, 24, 6), (5, 9, 4)]


def theirs(name, per_rank, microbatches, ranks):
    """PyTorch's schedule, or None if it rejects the shape."""
    stages = per_rank * ranks
    cls = peer.get_schedule_class(name)
    local = [0, stages - 1] if name in ("ZBVZeroBubble", "DualPipeV") and per_rank == 2 else range(0, stages, ranks)
    try:
        return cls([Stage(s, stages, ranks) for s in local], microbatches, loss_fn=lambda a, b: a)
    except (ValueError, AssertionError):
        return None


def rows(order):
    """Actions as text, without trailing idle slots."""
    found = []
    for rank in sorted(order):
        cells = ["" if action is None else str(action) for action in order[rank]]
        while cells and not cells[-1]:
            cells.pop()
        found.append(",".join(cells))
    return found


class SchedulesPeerTest(unittest.TestCase):
    def test_orders_and_lowerings(self):
        generated = rejected = 0
        for name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
            for per_rank, microbatches, ranks in SHAPES:
                with self.subTest(name=name, V=per_rank, M=microbatches, P=ranks):
                    schedule = theirs(name, per_rank, microbatches, ranks)
                    words = [PIPEWRIGHT, "print", name, "--ranks", str(ranks), "--stages", str(per_rank * ranks),
                             "--microbatches", str(microbatches), "--format", "csv"]
                    order = subprocess.run(words + ["--level", "compute_only"], capture_output=True, text=True)
                    if schedule is None:
                        self.assertEqual(order.returncode, 2, order.stderr)
                        rejected += 1
                        continue
                    self.assertEqual(order.returncode, 0, order.stderr)
                    self.assertEqual(order.stdout.split("\n")[:-1], rows(schedule.pipeline_order))
                    lowered = subprocess.run(words, capture_output=True, text=True)
                    self.assertEqual(lowered.stdout.split("\n")[:-1], rows(schedule.pipeline_order_with_comms))
                    generated += 1
        self.assertGreater(generated, 100)
        self.assertGreater(rejected, 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
