"""Holistic Trace Analysis reads the folders that `print --format kineto` writes, and finds in them what `simulate` reports.

hta_traces.py PIPEWRIGHT, with PyPI's HolisticTraceAnalysis.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest

from hta.trace_analysis import TraceAnalysis

RANKS, MICROBATCHES = 4, 8
RECORDED = os.path.join(os.path.dirname(__file__), "..", "cli", "recorded.json")


def pipewright(*arguments):
    return subprocess.run([PIPEWRIGHT, *arguments], capture_output=True, text=True, check=True).stdout


def hta_name(action):
    """The name of a kernel: HTA takes those of this form for communication."""
    transfers = ("SEND", "RECV", "UNSHARD", "RESHARD", "REDUCE")
    return f"ncclKernel_{action}" if any(one in action for one in transfers) else action


class HtaTest(unittest.TestCase):
    def check(self, source):
        rows = json.loads(pipewright("print", source[0], "--format", "json"))["rows"]
        reports = json.loads(pipewright("simulate", *source, "--json"))["ranks"]
        with tempfile.TemporaryDirectory() as folder:
            pipewright("print", *source, "--format", "kineto", "-o", folder)
            analysis = TraceAnalysis(trace_dir=folder)
            self.assertEqual(sorted(analysis.t.traces), list(range(len(rows))))
            breakdown = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
            symbols = analysis.t.symbol_table.get_sym_table()
            for rank, row in enumerate(rows):
                trace = analysis.t.get_trace(rank)
                self.assertEqual(sorted(symbols[name] for name in trace["name"]), sorted(hta_name(one) for one in row if one))
                # Without a unit, times count as milliseconds.
                self.assertAlmostEqual(breakdown.loc[rank]["compute_time(us)"], reports[rank]["busy"] * 1000)

    def test_every_schedule(self):
        names = [one["name"] for one in json.loads(pipewright("list", "--json"))["schedules"]]
        self.assertGreaterEqual(len(names), 16)
        for name in names:
            with self.subTest(schedule=name), tempfile.TemporaryDirectory() as folder:
                program = os.path.join(folder, "program.json")  # some schedules depend on the costs
                pipewright("print", name, "--ranks", str(RANKS), "--microbatches", str(MICROBATCHES), "-o", program)
                self.check([program, "--comm", "0.3"])

    def test_a_recording(self):
        # Rank 1 takes 1.5 times as long as rank 0: 4 times 1.5 + 3 ms against 4 times 2.25 + 4.5 ms. Rank 0 has 7 transfers
        # of 0.2 ms outside of its computes, rank 1 the first and the last one.
        self.assertEqual(self.breakdown(RECORDED), {
            "compute_time(us)": {0: 18000, 1: 27000}, "non_compute_time(us)": {0: 1400, 1: 400},
            "idle_time(us)": {0: 12500, 1: 1500}, "kernel_time(us)": {0: 31900, 1: 28900}})

    def breakdown(self, source):
        with tempfile.TemporaryDirectory() as folder:
            pipewright("print", source, "--format", "kineto", "-o", folder)
            table = TraceAnalysis(trace_dir=folder).get_temporal_breakdown(visualize=False).set_index("rank")
            return {name: dict(table[name]) for name in table if name.endswith("(us)")}


if __name__ == "__main__":
    PIPEWRIGHT = sys.argv[1]
    logging.disable(logging.WARNING)
    unittest.main(argv=sys.argv[:1])
