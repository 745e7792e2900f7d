"""Perfetto's own message definitions parse the traces that `print --format pftrace` writes, and `--format trace` has the same.

traces.py PIPEWRIGHT, with PyPI's perfetto.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import unittest

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

RANKS, MICROBATCHES = 4, 8
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cli/recorded.json")


def pipewright(*arguments, text=True, code=0):
    run = subprocess.run([PIPEWRIGHT, *arguments], capture_output=True, text=text)
    assert run.returncode == code, run.stderr
    return run.stdout


def has_unknown_fields(message):
    parts = [value for field, value in message.ListFields() if field.type == field.TYPE_MESSAGE]
    parts = [one for part in parts for one in (part if hasattr(part, "__len__") else [part])]
    return len(UnknownFieldSet(message)) > 0 or any(has_unknown_fields(part) for part in parts)


class ProtobufTrace:
    """Slices [(name, begin, end)] by (process, track), flows, and counters, all times in ns."""

    def __init__(self, data):
        trace = Trace()
        trace.ParseFromString(data)
        assert not has_unknown_fields(trace)
        described = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet
                     if packet.HasField("track_descriptor")}
        self.first = trace.packet[0]
        self.sequences = {packet.trusted_packet_sequence_id for packet in trace.packet}
        self.slices, self.sent, self.received = collections.defaultdict(list), {}, {}
        self.counters, self.instants = collections.defaultdict(list), collections.defaultdict(list)
        open_slices = {}
        for packet in trace.packet:
            if not packet.HasField("track_event"):
                continue
            event, track = packet.track_event, described[packet.track_event.track_uuid]
            process = described[track.parent_uuid].process.process_name if track.parent_uuid else track.process.process_name
            key = (process, track.name)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert key not in open_slices, f"{event.name} begins within {open_slices[key]}"
                open_slices[key] = (event.name, packet.timestamp)
                for flow in event.flow_ids:
                    self.sent.setdefault(flow, []).append((process, event.name, packet.timestamp))
                for flow in event.terminating_flow_ids:
                    self.received.setdefault(flow, []).append((process, event.name, packet.timestamp))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                name, begin = open_slices.pop(key)
                self.slices[key].append((name, begin, packet.timestamp))
            elif event.type == TrackEvent.TYPE_COUNTER:
                self.counters[key].append((packet.timestamp, event.double_counter_value))
            else:
                assert event.type == TrackEvent.TYPE_INSTANT, event
                self.instants[key].append((packet.timestamp, event.name))
        assert not open_slices, open_slices

    def slices_of(self, rank):
        return [one for (process, _), of_track in self.slices.items() if process == f"rank {rank}" for one in of_track]

    def everything(self):
        return [one for of_track in self.slices.values() for one in of_track]


def expected_receive(send):
    """The name of the RECV of `2SEND_F5`."""
    stage, rest = send.split("SEND_")
    return f"{int(stage) + (1 if rest[0] == 'F' else -1)}RECV_{rest}"


def num_sends(rows):
    return sum("SEND" in action and "WAIT" not in action for row in rows for action in row if action)


class TracesTest(unittest.TestCase):
    def test_every_schedule(self):
        names = [one["name"] for one in json.loads(pipewright("list", "--json"))["schedules"]]
        self.assertGreaterEqual(len(names), 16)
        for name in names:
            for level in ("compute_comms", "compute_only"):
                with self.subTest(schedule=name, level=level), tempfile.TemporaryDirectory() as folder:
                    program = os.path.join(folder, "program.json")  # some schedules depend on the costs
                    pipewright("print", name, "--ranks", str(RANKS), "--microbatches", str(MICROBATCHES), "--level", level, "-o", program)
                    self.check([program, "--comm", "0.3"])

    def test_a_recording(self):
        """Its slices are what the file says of its actions."""
        with open(RECORDED) as file:
            run = json.load(file)
        self.assertEqual(run["recording"]["unit"], "ms")
        trace = ProtobufTrace(pipewright("print", RECORDED, "--format", "pftrace", text=False))
        for rank, (row, times) in enumerate(zip(run["rows"], run["recording"]["times"])):
            found = sorted(trace.slices_of(rank), key=lambda one: row.index(one[0]))
            self.assertEqual([name for name, _, _ in found], row)
            self.assertEqual(len(trace.slices[f"rank {rank}", "compute"]), 8)
            for (name, *found_times), expected_times in zip(found, times):
                for found_time, expected in zip(found_times, expected_times):
                    self.assertAlmostEqual(found_time, expected * 1e6, delta=1, msg=name)
        self.assertEqual(len(trace.sent), num_sends(run["rows"]))
        self.assertEqual(sorted(self.chrome_slices([RECORDED])), sorted(trace.everything()))

    def test_work_beside_the_actions(self):
        """Both streams of a compound and the copies of a recording, and the copies of a simulation, are tracks."""
        with open(RECORDED) as file:
            run = json.load(file)
        run["recording"]["work"] = [[1, "to host", "1F1", 11, 12], [1, "compute 2", "1F1", 8.5, 10], [1, "to host", "1F0", 4, 4.5]]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            with open(path, "w") as file:
                json.dump(run, file)
            trace = ProtobufTrace(pipewright("print", path, "--format", "pftrace", text=False))
            self.assertEqual(sorted(self.chrome_slices([path])), sorted(trace.everything()))
            costs = os.path.join(folder, "costs.json")
            with open(costs, "w") as file:
                json.dump({"version": 1, "unit": "ms", "offload": 0.5, "reload": 0.5, "activation_bytes": 10, "offload_bytes": 10}, file)
            predicted = ProtobufTrace(pipewright("print", "GPipe", "--ranks", "1", "--microbatches", "2", "--offload", "0",
                                                 "--costs", costs, "--format", "pftrace", text=False))
        self.assertEqual(trace.slices["rank 1", "to host"], [("1F0", 4000000, 4500000), ("1F1", 11000000, 12000000)])
        self.assertEqual(trace.slices["rank 1", "compute 2"], [("1F1", 8500000, 10000000)])
        self.assertEqual(len(trace.slices["rank 1", "compute"]), 8)
        self.assertEqual(predicted.slices["rank 0", "to host"], [("0F0", 1000000, 1500000), ("0F1", 2000000, 2500000)])
        self.assertEqual(predicted.slices["rank 0", "to device"], [("0F0", 1500000, 2000000), ("0F1", 2500000, 3000000)])

    def test_a_schedule_that_stops(self):
        """What ran, and where each rank stops: rank 1 begins with the microbatch that rank 0 runs last."""
        with tempfile.TemporaryDirectory() as folder:
            order = os.path.join(folder, "order.csv")
            with open(order, "w") as file:
                file.write("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
            trace = ProtobufTrace(pipewright("print", order, "--format", "pftrace", text=False, code=1))
        self.assertEqual(dict(trace.slices), {("rank 0", "compute"): [("0F0", 0, 1000000)]})
        stops = sorted((process, *one) for (process, _), of_track in trace.instants.items() for one in of_track)
        self.assertEqual(stops, [("rank 0", 1000000, "stops before 0B0"), ("rank 1", 0, "stops before 1F1")])

    def test_sizes(self):
        """The bytes in use: each F saves its activation, and each B frees one."""
        with tempfile.TemporaryDirectory() as folder:
            costs = os.path.join(folder, "costs.json")
            with open(costs, "w") as file:
                json.dump({"version": 1, "forward": 1, "backward_input": 1, "backward_weight": 1, "activation_bytes": [100, 7]}, file)
            trace = ProtobufTrace(pipewright("print", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs", costs, "--format",
                                             "pftrace", text=False))
        for rank, size in enumerate([100, 7]):
            changes = []
            for name, begin, end in trace.slices[f"rank {rank}", "compute"]:
                if "WAIT" not in name:
                    changes.append((begin, size) if "F" in name else (end, -size))
            self.assertEqual(len(changes), 8)
            found = dict(trace.counters[f"rank {rank}", "bytes"])  # the last value at each time
            self.assertLessEqual({time for time, _ in changes}, set(found))
            for time, in_use in found.items():
                self.assertEqual(in_use, sum(change for when, change in changes if when <= time), time)
            highest = max(value for _, value in trace.counters[f"rank {rank}", "bytes"])
            self.assertEqual(highest, size * (2 - rank))

    def check(self, source):
        rows = json.loads(pipewright("print", source[0], "--format", "json"))["rows"]
        simulated = json.loads(pipewright("simulate", *source, "--json"))
        trace = ProtobufTrace(pipewright("print", *source, "--format", "pftrace", text=False))
        self.assertEqual(trace.first.sequence_flags, 1)
        self.assertEqual(len(trace.sequences), 1)
        for rank, row in enumerate(rows):
            self.assertEqual(sorted(name for name, _, _ in trace.slices_of(rank)), sorted(action for action in row if action))
            # The computes run in the order of the program.
            computes = [name for name, _, _ in trace.slices[f"rank {rank}", "compute"]]
            self.assertEqual(computes, [action for action in row if action in set(computes)])
        for of_track in trace.slices.values():
            for (_, begin, end), (_, following, _) in zip(of_track, of_track[1:] + [(None, sys.maxsize, None)]):
                self.assertLessEqual(begin, end)
                self.assertLessEqual(end, following)  # slices of one track never overlap
        everything = trace.everything()
        makespan = max(end for _, _, end in everything) - min(begin for _, begin, _ in everything)
        self.assertAlmostEqual(makespan, simulated["makespan"] * 1e6, delta=2)
        # One arrow per transfer, from its SEND to its RECV.
        self.assertEqual(set(trace.sent), set(trace.received))
        self.assertEqual(len(trace.sent), num_sends(rows))
        for flow, [(_, send, begin)] in trace.sent.items():
            [(_, receive, later)] = trace.received[flow]
            self.assertEqual(receive, expected_receive(send))
            self.assertLessEqual(begin, later)
        for rank, report in enumerate(simulated["ranks"]):
            activations = [value for _, value in trace.counters[f"rank {rank}", "activations"]]
            self.assertEqual(max(activations), report["peak_activations"])
            self.assertEqual(activations[-1], 0)
        self.assertEqual(sorted(self.chrome_slices(source)), sorted(everything))

    def chrome_slices(self, source):
        """Those of the JSON trace, where no two of one track may overlap either."""
        tracks = collections.defaultdict(list)
        for event in json.loads(pipewright("print", *source, "--format", "trace"))["traceEvents"]:
            if event["ph"] == "X":
                begin = event["ts"] * 1000
                tracks[event["pid"], event["tid"]].append((event["name"], round(begin), round(begin + event["dur"] * 1000)))
        for of_track in tracks.values():
            of_track.sort(key=lambda one: one[1:])
            for (_, _, end), (_, following, _) in zip(of_track, of_track[1:]):
                self.assertLessEqual(end, following)
        return [one for of_track in tracks.values() for one in of_track]


if __name__ == "__main__":
    PIPEWRIGHT = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
