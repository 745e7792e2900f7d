"""Compares compute orders and lowerings with PyTorch's schedule classes over a wide range of shapes.

Run by Bazel with tag `peer`: schedules_peer.py PIPEWRIGHT. GPipe and 1F1B are excluded, because PyTorch does not
execute the orders that it exports for them.
"""

import json
import subprocess
import sys
import unittest

from torch.distributed.pipelining import schedules as peer

from stage_stub import Stage
from versions import RULES

PIPEWRIGHT = sys.argv[1]

# (stages per rank, microbatches, ranks): the list in PyTorch's test_pipeline_order, and shapes between its cases.
SHAPES = [(2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8), (4, 16, 4), (4, 32, 4),
          (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64), (3, 2, 2), (3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5),
          (2, 3, 4), (2, 4, 4), (2, 10, 4), (2, 15, 4),
          (1, 1, 1), (1, 5, 3), (2, 1, 1), (2, 1, 5), (2, 7, 3), (2, 9, 5), (2, 11, 3), (2, 13, 6), (3, 7, 5), (2, 24, 6), (5, 9, 4)]


# Our options, and those of PyTorch 2.15's schedules.
OPTIONS = [(["--residency", "2"], {"max_active_stages": 2}), (["--residency", "5"], {"max_active_stages": 5}),
           (["--residency", "4", "--lookahead", "auto"], {"max_active_stages": 4, "unshard_lookahead": "auto"}),
           (["--lookahead", "1"], {"unshard_lookahead": 1}), (["--receives", "parity"], {"defer_pp_recv": True}),
           (["--defer-reduce-grad-wait"], {"defer_reduce_grad_wait": True}),
           *((["--max-outstanding-sends", str(most)], {"max_outstanding_sends": most}) for most in (1, 2, 3)),
           (["--max-outstanding-sends", "2", "--receives", "parity"], {"max_outstanding_sends": 2, "defer_pp_recv": True})]


def theirs(name, per_rank, microbatches, ranks, **options):
    """PyTorch's schedule, or None if it rejects the shape."""
    stages = per_rank * ranks
    cls = peer.get_schedule_class(name)
    local = [0, stages - 1] if name in ("ZBVZeroBubble", "DualPipeV") and per_rank == 2 else range(0, stages, ranks)
    if options.get("unshard_lookahead") == 1:
        options["unshard_lookahead"] = (1,) * ranks
    try:
        return cls([Stage(s, stages, ranks) for s in local], microbatches, loss_fn=lambda a, b: a, **options)
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
                             "--microbatches", str(microbatches), "--torch", RULES, "--format", "csv"]
                    order = subprocess.run([word for word in words if word not in ("--torch", RULES)] + ["--level", "compute_only"], capture_output=True, text=True)
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

    if RULES == "2.15":
        def test_options(self):
            equal = refused = swapped = 0
            for name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
                for per_rank, microbatches, ranks in [shape for shape in SHAPES if shape[1] * shape[2] <= 72]:
                    for words, options in OPTIONS:
                        if theirs(name, per_rank, microbatches, ranks) is None:
                            continue
                        with self.subTest(name=name, V=per_rank, M=microbatches, P=ranks, options=options):
                            schedule = theirs(name, per_rank, microbatches, ranks, **options)
                            ours = subprocess.run([PIPEWRIGHT, "print", name, "--ranks", str(ranks), "--stages",
                                                   str(per_rank * ranks), "--microbatches", str(microbatches),
                                                   "--format", "csv", *words], capture_output=True, text=True)
                            if schedule is None:
                                self.assertRegex(ours.stderr, "is too low")
                                refused += 1
                            elif "PW041" in ours.stderr and "defer_pp_recv" in options:
                                swapped += 1  # RECVs that would meet other SENDs: PyTorch does not notice
                            else:
                                self.assertEqual(ours.stdout.split("\n")[:-1], rows(schedule.pipeline_order_with_comms))
                                equal += 1
            self.assertGreater(equal, 500)
            self.assertGreater(refused, 5)
            self.assertGreater(swapped, 10)

        # The peak of our certificate is the number of slots that PyTorch assigns.
        def test_activation_slots(self):
            compared = 0
            for name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
                for per_rank, microbatches, ranks in [shape for shape in SHAPES if shape[1] * shape[2] <= 72]:
                    schedule = theirs(name, per_rank, microbatches, ranks)
                    if schedule is None:
                        continue
                    words = [PIPEWRIGHT, "validate", name, "--ranks", str(ranks), "--stages", str(per_rank * ranks),
                             "--microbatches", str(microbatches), "--json"]
                    certificate = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)["certificate"]
                    for rank, ours in enumerate(certificate["ranks"]):
                        with self.subTest(name=name, V=per_rank, M=microbatches, P=ranks, rank=rank):
                            mine = sorted({a.stage_index for a in schedule.pipeline_order_with_comms[rank] if not a.sub_actions})
                            slots = peer.analyze_pipeline_activation_liveness(
                                schedule, pp_rank=rank, stage_indices=mine, granularity="stage_microbatch").num_slots
                            self.assertEqual(ours["activations"]["peak"], slots)
                            compared += 1
            self.assertGreater(compared, 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
