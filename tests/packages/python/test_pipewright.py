"""The Python package, installed: its results against closed forms and against the command; its errors."""

import gc
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import numpy
import pipewright as pw


def command(*arguments, **options):
    done = subprocess.run(["pipewright", *arguments], capture_output=True, **options)
    return done.stdout.decode(), done.stderr.decode()  # a CSV has PyTorch's line ends


class ScheduleTest(unittest.TestCase):
    def test_the_first_lines_of_the_documentation(self):
        order = pw.make("ZBV", ranks=4, microbatches=8)
        program = order.lower(residency=2)
        self.assertTrue(program.verify())
        self.assertEqual(order.simulate().cost, 48)  # no bubble: 2 stages * 8 microbatches * 3
        self.assertEqual((order.ranks, order.stages, order.microbatches, order.level), (4, 8, 8, "compute_only"))
        self.assertEqual((program.level, program.policies["residency"]), ("compute_comms", "2"))

    def test_same_text_as_the_command(self):
        for name in pw.schedules():
            with self.subTest(name):
                schedule = pw.make(name, ranks=4, microbatches=8)
                arguments = ["print", name, "--ranks", "4", "--microbatches", "8"]
                for extension in ("csv", "plan", "json"):
                    for level, made in (("compute_only", schedule), ("compute_comms", schedule.lower())):
                        printed = command(*arguments, "--level", level, "--format", extension)[0]
                        self.assertEqual(getattr(made, f"to_{extension}")(), printed)

    def test_memory_has_the_unit_of_the_command(self):
        for memory in (2, 2.5, 4):
            made = pw.make("V-Adaptive", ranks=4, microbatches=8, memory=memory).to_csv()
            self.assertEqual(made, command("print", "V-Adaptive", "--ranks", "4", "--microbatches", "8", "--memory",
                                           str(memory), "--level", "compute_only", "--format", "csv")[0])
        with self.assertRaisesRegex(pw.ScheduleError, "memory 1.9"):
            pw.make("V-Adaptive", ranks=4, microbatches=8, memory=1.9)

    def test_rows(self):
        order = pw.make("1F1B", ranks=2, microbatches=2)
        self.assertEqual(order.rows, [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])
        self.assertEqual(len(order), 8)

    def test_read_and_save(self):
        program = pw.make("V-Half", ranks=4, microbatches=8).lower(receives="latest")
        with tempfile.TemporaryDirectory() as folder:
            for extension in ("csv", "plan", "json"):
                path = os.path.join(folder, f"v.{extension}")
                program.save(path)
                self.assertEqual(pw.read(path).rows, program.rows)
            self.assertEqual(pw.read(os.path.join(folder, "v.plan")), program)
            self.assertEqual(sorted(os.listdir(folder)), ["v.csv", "v.json", "v.plan"])
            with self.assertRaisesRegex(ValueError, "format: expected csv, plan, json"):
                program.save(os.path.join(folder, "v.txt"))
        self.assertEqual(pw.read("0F0,0B0\n").rows, [["0F0", "0B0"]])
        self.assertEqual(program.compute_order().lower(receives="latest"), program)

    def test_a_search_of_replicas(self):
        found = pw.search(ranks=2, microbatches=4, replicas=2, budget="small")
        self.assertEqual(found.schedule.replica_ranks, [[0, 1], [1, 0]])
        self.assertLessEqual(found.cost, pw.make("Chimera", ranks=2, microbatches=4).simulate().cost)
        for arguments, message in (
                ({"ranks": 3}, "replicas 2: expected an even number of ranks, got 3"),
                ({"replicas": 3}, "replicas: expected 1 or 2, got 3"),
                ({"placement": "free"}, "replicas cannot be used with layers, recompute, offload or placement free")):
            with self.assertRaisesRegex(ValueError, message):
                pw.search(**{"ranks": 2, "microbatches": 4, "replicas": 2} | arguments)

    def test_replicas(self):
        order = pw.make("DualPipe", ranks=4, microbatches=12)
        self.assertEqual(order.replica_ranks, [[0, 1, 2, 3], [3, 2, 1, 0]])
        self.assertEqual(order.stage_ranks, [0, 1, 2, 3])
        self.assertEqual(order.simulate().cost, 38)  # 12 * 3 + (4 / 2 - 1) * (3 + 2 - 3)
        self.assertTrue(order.lower().verify())
        self.assertEqual(pw.read(order.to_plan()), order)
        read = pw.read(order.to_csv(), replicas=2)
        self.assertEqual((read.rows, read.simulate().cost), (order.rows, 38))
        self.assertTrue(read.lower().verify())
        with self.assertRaisesRegex(pw.ScheduleError, "is on rank"):
            pw.read(order.to_csv())
        with self.assertRaisesRegex(pw.ScheduleError, "expected that ranks are even"):
            pw.make("DualPipe", ranks=3, microbatches=12)

    def test_slices(self):
        order = pw.make("Seq1F1B", ranks=4, microbatches=8, slices=2)
        self.assertEqual((order.microbatches, order.slices), (8, 2))
        self.assertEqual(order.simulate().cost, 28.5)  # 8 * 3 + (4 - 1) * 3 / 2
        self.assertTrue(order.lower().verify())
        self.assertEqual(pw.read(order.to_plan()), order)
        self.assertEqual(pw.read(order.to_csv(), slices=2).rows, order.rows)
        self.assertEqual(pw.read(order.to_csv(), slices=2).simulate().cost, 28.5)
        self.assertEqual(pw.read(order.to_csv()).microbatches, 16)
        with self.assertRaisesRegex(pw.ScheduleError, "expected microbatches of 3 slices each, got 16 slices"):
            pw.read(order.to_csv(), slices=3)
        with self.assertRaisesRegex(pw.ScheduleError, "1F1B does not take `slices`"):
            pw.make("1F1B", ranks=4, microbatches=8, slices=2)
        found = pw.search(ranks=4, microbatches=8, slices=2, memory=2.5, budget=10_000)
        self.assertEqual((found.schedule.slices, found.schedule.microbatches), (2, 8))
        self.assertLessEqual(found.cost, 28.5)
        with self.assertRaisesRegex(ValueError, "slices cannot be used with layers"):
            pw.search(ranks=2, microbatches=2, slices=2, layers=True, costs={"version": 1, "layers": [{"count": 4}]})

    def test_diff(self):
        one, other = (pw.make(name, ranks=2, microbatches=4) for name in ("GPipe", "1F1B"))
        self.assertFalse(any(one.diff(one)))
        changes = one.diff(other)
        self.assertTrue(any(changes))
        self.assertEqual([change.removed + change.added for change in changes], [[], []])
        self.assertEqual(repr(pw.read("0F0,0B0\n").diff(pw.read("0F0,0B0,0F1\n"))),
                         "[Change(removed=[], added=['0F1'], moved=[])]")

    def test_immutable(self):
        order = pw.make("1F1B", ranks=2, microbatches=2)
        with self.assertRaises(AttributeError):
            order.rows = []
        order.rows[0].clear()
        self.assertEqual(len(order.rows[0]), 4)


class VerifyTest(unittest.TestCase):
    def test_diagnostics_are_those_of_the_command(self):
        text = "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n"
        verdict = pw.read(text, name="plan.csv").verify()
        self.assertFalse(verdict)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "plan.csv"), "w", encoding="utf-8") as file:
                file.write(text)
            printed, _ = command("validate", "plan.csv", "--json", cwd=folder)
            _, shown = command("validate", "plan.csv", cwd=folder)
        expected = json.loads(printed)["diagnostics"]
        self.assertEqual([one.code for one in verdict.diagnostics], [one["code"] for one in expected])
        self.assertEqual([one.message for one in verdict.diagnostics], [one["message"] for one in expected])
        self.assertEqual([(one.rank, one.step, one.line, one.column) for one in verdict.diagnostics],
                         [(one["rank"], one["step"], one["line"], one["column"]) for one in expected])
        self.assertTrue(shown.startswith(str(verdict)), str(verdict))

    def test_carets(self):
        with self.assertRaises(pw.ScheduleError) as caught:
            pw.read("0F0,0X0\n", name="plan.csv")
        self.assertIn("plan.csv:1:6: error[PW002]: unknown token `X`\n0F0,0X0\n     ^\n", str(caught.exception))
        self.assertEqual(caught.exception.diagnostics[0].column, 6)
        self.assertIsInstance(caught.exception, ValueError)

    def test_certificate(self):
        verdict = pw.make("1F1B", ranks=4, microbatches=8).verify()
        self.assertEqual([one.activations for one in verdict.certificate], [4, 3, 2, 1])
        self.assertRegex(repr(verdict), r"^Verdict\(diagnostics=\[\], certificate=\[RankCertificate\(activations=4, receive_b")


class SimulateTest(unittest.TestCase):
    def test_against_a_closed_form(self):
        for ranks, microbatches in ((2, 3), (4, 8), (8, 24)):
            run = pw.make("1F1B", ranks=ranks, microbatches=microbatches).simulate(forward=2, backward_input=3)
            self.assertEqual(run.makespan, (microbatches + ranks - 1) * (2 + 3 + 1))

    def test_times_share_memory(self):
        run = pw.make("1F1B", ranks=2, microbatches=2).simulate()
        times = run.times(1)
        self.assertIsInstance(times, numpy.ndarray)
        numpy.testing.assert_array_equal(times, [[1, 2], [2, 4], [4, 5], [5, 7]])
        self.assertFalse(times.flags.writeable)
        self.assertFalse(times.flags.owndata)
        del run
        gc.collect()
        self.assertEqual(times[3, 1], 7)  # the array keeps the simulation
        with self.assertRaises(IndexError):
            pw.make("1F1B", ranks=2, microbatches=2).simulate().times(2)

    def test_slack(self):
        run = pw.make("1F1B", ranks=4, microbatches=8).simulate()
        self.assertEqual(len(run.slack), 64)
        self.assertEqual(run.slack.min(), 0)
        self.assertEqual(run.slack[2 * 16 + 1], 2)  # 2F1 ends at 4; 3F1 waits until 6

    def test_costs(self):
        order = pw.make("1F1B", ranks=2, microbatches=2)
        self.assertEqual(order.simulate({"forward": 2}).makespan, order.simulate(forward=2).makespan)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"version": 1, "forward": 2, "latency": 0.5}')
            file.flush()
            self.assertEqual(order.simulate(file.name).makespan, order.simulate(forward=2, comm=0.5).makespan)
            self.assertEqual(order.simulate(file.name, comm=0).makespan, order.simulate(forward=2).makespan)
        self.assertGreater(order.simulate(slow={1: 2}).makespan, order.simulate().makespan)
        with self.assertRaisesRegex(pw.ScheduleError, "forwards"):
            order.simulate({"forwards": 2})
        with self.assertRaisesRegex(TypeError, "there is no argument `backward`"):
            order.simulate(backward=2)

    def test_pictures(self):
        run = pw.make("ZB-H1", ranks=4, microbatches=8).simulate()
        self.assertTrue(run._repr_svg_().startswith("<svg"))
        self.assertTrue(run.to_html(against=run).startswith("<!doctype html>"))
        self.assertIn("traceEvents", json.loads(run.to_trace()))
        self.assertTrue(str(run).startswith("rank 0  F0 F1"))


class SearchTest(unittest.TestCase):
    def test_found_schedule(self):
        found = pw.search(ranks=4, microbatches=8, placement="v", memory=4, budget="small")
        self.assertTrue(found.schedule.verify())
        self.assertEqual(found.schedule.simulate().cost, found.cost)
        self.assertGreaterEqual(found.cost, found.bound)
        other = pw.search(ranks=4, microbatches=8, placement="v", memory=4, budget="small", threads=1)
        self.assertEqual(other.schedule, found.schedule)

    def test_memory_of_each_rank(self):
        limits = [4, 3, 3, 2]
        found = pw.search(ranks=4, microbatches=8, memory=limits, budget="small")
        self.assertEqual(found.memory, limits)
        self.assertGreater(found.cost, pw.search(ranks=4, microbatches=8, memory=4, budget="small").cost)
        self.assertEqual(found.schedule.simulate(memory=limits).cost, found.cost)
        with self.assertRaisesRegex(pw.ScheduleError, "one per rank, got 2"):
            found.schedule.simulate(memory=[4, 4])
        costs = {"activation_bytes": 100, "parameter_bytes": 1000, "optimizer_bytes": 50}
        rank = found.schedule.simulate(costs).ranks[0]
        self.assertEqual(sum(rank.memory.values()), rank.peak_bytes)
        self.assertEqual(rank.memory["optimizer"], 50)

    def test_stages_that_recompute_or_offload(self):
        one = pw.make("GPipe", ranks=1, microbatches=2)
        self.assertEqual((one.recompute, one.offload), ([], []))
        self.assertEqual(one.with_stages(recompute=[0]).simulate().cost, 2 * 1 + 2 * 3)
        plain = pw.make("GPipe", ranks=2, microbatches=8)
        both = plain.with_stages(recompute=[1], offload=range(2))
        self.assertEqual((both.recompute, both.offload), ([1], [0, 1]))
        self.assertEqual(pw.read(both.to_plan()), both)
        self.assertEqual(both.with_stages(recompute=[]), plain.with_stages(offload=[0, 1]))
        costs = {"activation_bytes": 100, "offload_bytes": [40, 0], "offload": 1, "reload": 1}
        self.assertEqual(plain.simulate(costs).ranks[0].peak_bytes, 800)
        self.assertLess(plain.with_stages(offload=[0]).simulate(costs).ranks[0].peak_bytes, 800)
        with self.assertRaisesRegex(pw.ScheduleError, "expected a size above 0 for stage 1, which offloads, got 0"):
            both.simulate(costs)
        for stages in ([2], [1, 0], [0, 0], [-1]):
            with self.assertRaisesRegex(ValueError, "offload: expected different stages from 0 to 1 in ascending order, got"):
                plain.with_stages(offload=stages)
        for stages in ("0", [0.0], 0, [True]):
            with self.assertRaisesRegex(TypeError, "recompute: expected a list of stages, got"):
                plain.with_stages(recompute=stages)

    def test_search_chooses_stages(self):
        costs = {"forward": 10, "backward_input": 11, "backward_weight": 9, "activation_bytes": 100, "checkpoint_bytes": 10,
                 "weight_input_bytes": 40, "offload_bytes": 90, "offload": 6, "reload": 6}

        def found(memory_bytes, **arguments):
            return pw.search(ranks=4, stages=8, microbatches=8, costs=costs, memory_bytes=memory_bytes, budget=1_000_000,
                             **arguments)

        offload, recompute, neither = found(350, offload=True), found(350, recompute=True), found(350)
        self.assertLess(offload.cost, neither.cost)
        self.assertLess(recompute.cost, neither.cost)
        self.assertEqual((offload.schedule.recompute, recompute.schedule.offload, neither.schedule.offload), ([], [], []))
        self.assertTrue(offload.schedule.offload and recompute.schedule.recompute)
        simulated = offload.schedule.simulate(costs)
        self.assertEqual(simulated.cost, offload.cost)
        self.assertLessEqual(max(rank.peak_bytes for rank in simulated.ranks), 350)
        self.assertLessEqual(found(350, recompute=True, offload=True).cost, recompute.cost)
        for arguments, message in (
            ({"offload": True, "costs": {}}, "offload: expected costs with `offload_bytes` above 0, got 0"),
            ({"recompute": True, "costs": {}}, "recompute: expected costs with `activation_bytes` above 0, got 0"),
            ({"offload": True, "layers": True, "costs": {"layers": [{"count": 9, "offload_bytes": 1}]}},
             "offload cannot be used with layers"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                pw.search(ranks=4, microbatches=8, **arguments)

    def test_layers(self):
        costs = {"layers": [{"count": 7}, {"forward": 2, "backward_input": 2, "backward_weight": 2}]}
        found = pw.search(ranks=4, microbatches=8, costs=costs, layers=True, budget="small")
        self.assertEqual(sum(found.schedule.cut), 8)
        self.assertEqual(pw.read(found.schedule.to_plan()).cut, found.schedule.cut)
        self.assertEqual(found.schedule.simulate(costs).cost, found.cost)
        even = pw.search(ranks=4, microbatches=8, costs=costs, budget="small")
        self.assertLessEqual(found.cost, even.cost)
        self.assertLessEqual(found.bound, even.bound)
        ranges = pw.cut(costs, found.schedule)
        self.assertEqual([len(one) for one in ranges], found.schedule.cut)
        self.assertEqual([layer for one in ranges for layer in one], list(range(8)))
        self.assertEqual(pw.cut(costs, even.schedule.lower()), [range(0, 2), range(2, 4), range(4, 6), range(6, 8)])
        self.assertEqual(pw.cut({**costs, "cut": [5, 0, 2, 1]}, found.schedule)[2], range(5, 7))
        with self.assertRaisesRegex(pw.ScheduleError, "expected 9 layers in all, got 8"):
            pw.cut({"layers": [{"count": 9}]}, found.schedule)
        with self.assertRaisesRegex(ValueError, "costs: expected `layers`, got none"):
            pw.cut({"forward": 2}, found.schedule)
        with self.assertRaisesRegex(ValueError, "a layer for each of 9 stages, got 8"):
            pw.search(ranks=3, stages=9, microbatches=8, costs=costs, layers=True)

    def test_wrong_arguments(self):
        for arguments, message in (
            ({"ranks": 0}, "ranks: expected a whole number from 1"),
            ({"memory": -1}, "memory: expected a number above 0"),
            ({"memory": 0.1}, "no schedule fits rank 0"),
            ({"budget": 0}, "budget: expected small, medium, large"),
            ({"placement": "spiral"}, "placement: expected loop, v, wave or free"),
            ({"placement": "free", "stages": 6}, "expected stages that can be cut into 1, 2 or 4 per rank, got 6 on 4"),
            ({"placement": "v", "stages": 6}, "expected a multiple of the ranks"),
            ({"memory": 1, "memory_bytes": 1}, "cannot be used with"),
            ({"robust": 0.1, "robust_by": "p90"}, "robust_by: expected mean or p95, got `p90`"),
            ({"robust_by": "mean"}, "robust_by requires robust"),
        ):
            with self.subTest(arguments), self.assertRaisesRegex(ValueError, message):
                pw.search(**{"ranks": 4, "microbatches": 8, **arguments})

    def test_robustness(self):
        def costs_under_noise(by):
            arguments = {"robust": 0.2, "robust_by": by} if by else {}
            return pw.search(ranks=3, microbatches=6, placement="v", memory=2, comm=0.5, budget=50_000, **arguments)

        self.assertIsNone(costs_under_noise(None).robustness)
        mean, tail = costs_under_noise("mean"), costs_under_noise("p95")
        self.assertLessEqual(mean.makespan * (1 + mean.robustness.mean), tail.makespan * (1 + tail.robustness.mean))
        self.assertLessEqual(tail.makespan * (1 + tail.robustness.percentile_95),
                             mean.makespan * (1 + mean.robustness.percentile_95))
        for by, found in (("mean", mean), ("p95", tail)):
            printed = json.loads(command("search", "--ranks", "3", "--microbatches", "6", "--placement", "v", "--memory", "2",
                                         "--comm", "0.5", "--budget", "50000", "--robust", "0.2", "--robust-by", by,
                                         "--json")[0])["robustness"]
            for name, value in printed.items():
                self.assertAlmostEqual(getattr(found.robustness, name), value, places=9)

    def test_front(self):
        found = pw.search(ranks=4, microbatches=8, placement="free", memory=4, budget="small")
        printed = json.loads(command("search", "--ranks", "4", "--microbatches", "8", "--placement", "free", "--memory", "4",
                                     "--budget", "small", "--json")[0])["front"]
        self.assertEqual([(one.placement, one.stages, one.memory, one.cost, one.is_best) for one in found.front],
                         [(one["placement"], one["stages"], one["memory"], one["cost"], one["is_best"]) for one in printed])
        self.assertEqual(found.cost, min(one.cost for one in found.front))
        for one in found.front:
            self.assertTrue(one.schedule.verify())
        self.assertEqual(pw.search(ranks=4, microbatches=8, memory=4, budget="small").front, ())

    def test_interrupt_ends_a_search(self):
        # Whatever started the tests may have made them ignore SIGINT.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            pw.search(ranks=16, microbatches=128, placement="v", memory=5, budget=10**12)
        self.assertLess(time.monotonic() - started, 30)

    def test_releases_the_gil(self):
        counted, done = 0, threading.Event()
        thread = threading.Thread(target=lambda: (pw.search(ranks=8, microbatches=32, placement="v", memory=5,
                                                            budget="small", threads=1), done.set()))
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0.001)
        thread.join()
        self.assertGreater(counted, 10)


class WrongInputTest(unittest.TestCase):
    def test_messages(self):
        for call, kind, message in (
            (lambda: pw.make("1F1B", ranks="4", microbatches=8), TypeError, "ranks: expected a whole number"),
            (lambda: pw.make("1F1B", ranks=-4, microbatches=8), ValueError, "ranks: expected a whole number from 1"),
            (lambda: pw.make("1F1B", ranks=True, microbatches=8), TypeError, "ranks"),
            (lambda: pw.make("1F1B", ranks=2**40, microbatches=8), ValueError, "2147483647"),
            (lambda: pw.make("2F2B", ranks=4, microbatches=8), pw.ScheduleError, "there is no schedule `2F2B`"),
            (lambda: pw.make("Interleaved1F1B", ranks=4, microbatches=9), pw.ScheduleError, "PW071"),
            (lambda: pw.read("missing.csv"), FileNotFoundError, "missing.csv"),
            (lambda: pw.make("1F1B", ranks=2, microbatches=2).lower(residncy=2), ValueError, "did you mean"),
            (lambda: pw.make("1F1B", ranks=2, microbatches=2).lower(residency=0), ValueError, "residency: expected"),
            (lambda: pw.Schedule(3), TypeError, "made by"),
        ):
            with self.assertRaisesRegex(kind, message):
                call()

    # Every call ends with a result or an exception of Python.
    def test_random_calls(self):
        values = [None, -1, 0, 1, 2, 4, 8, 2**31, 2**70, 1.5, float("nan"), "", "1F1B", "ZBV", "0F0\n", [], {}, b"x", True]
        generator = random.Random(7)
        order = pw.make("ZBV", ranks=2, microbatches=4)
        calls = [
            lambda pick: pw.make(pick(), ranks=pick(), microbatches=pick(), stages=pick(), memory=pick()),
            lambda pick: pw.read(pick(), name=pick()),
            lambda pick: order.lower(residency=pick(), capacity=pick(), channels=pick()),
            lambda pick: order.simulate(pick(), scale=pick(), slow=pick(), memory=pick()),
            lambda pick: order.simulate(forward=pick(), comm=pick()),
            lambda pick: order.simulate().times(pick()),
            lambda pick: order.simulate().to_html(pick()),
            lambda pick: order.diff(pick()),
            lambda pick: order.verify(reduce_every=pick(), lookahead=pick()),
            lambda pick: pw.search(ranks=2, microbatches=pick(), placement=pick(), memory=pick(), budget=1000),
        ]
        kinds = (ValueError, TypeError, OSError, OverflowError, IndexError)
        for _ in range(10_000):
            call = generator.choice(calls)
            try:
                call(lambda: generator.choice(values))
            except kinds:
                pass


if __name__ == "__main__":
    unittest.main()
