"""train_gpt on several hosts: it trains as on one, its runs are as predicted, and failures name host and rank.

Run by Bazel with tag `hosts`: hosts_test.py TRAIN_GPT PIPEWRIGHT. hosts.py makes the hosts.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from hosts import Hosts, enter_namespaces

MODEL = ["--layers", "6", "--dim", "32", "--context", "32", "--json"]


def torchrun_variables(rank, size, local_rank):
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "MASTER_ADDR": "node1", "MASTER_PORT": 29500}


def slurm_variables(rank, size, local_rank):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": local_rank, "SLURM_STEP_NODELIST": "node[1-3]",
            "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0}


def start(hosts, options, variables=torchrun_variables):
    """Starts rank r of a job on hosts[r]."""
    ranks = []
    for rank, host in enumerate(hosts):
        values = variables(rank, len(hosts), hosts[:rank].count(host))
        ranks.append(host.start([TRAIN_GPT, *options], {name: str(value) for name, value in values.items()}))
    return ranks


def lines_of(output):
    return [json.loads(line) for line in output.splitlines()]


def losses(output):
    return [line.get("loss", line.get("held_back_loss")) for line in lines_of(output)]


class HostsTest(unittest.TestCase):
    def finish(self, ranks, expected=None):
        """What the job printed. All its ranks must succeed, and train as `expected`."""
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * len(ranks), outputs)
        printed = [out for out, _ in outputs if out]
        self.assertEqual(len(printed), 1)
        if expected:
            self.assertEqual(len(losses(printed[0])), len(expected))
            for found, loss in zip(losses(printed[0]), expected):
                self.assertAlmostEqual(found, loss, delta=1e-5)
        return printed[0]

    def losses_on_one_host(self, options):
        return losses(subprocess.run([TRAIN_GPT, *options], capture_output=True, text=True, check=True).stdout)


class TrainingTest(HostsTest):
    def test_two_hosts_train_as_one(self):
        options = [*MODEL, "--steps", "5", "--pp", "2", "--dp-shard", "2", "--schedule", "Interleaved1F1B"]
        expected = self.losses_on_one_host(options)
        self.assertEqual(len(expected), 6)
        with Hosts(2) as (one, two):
            # Ranks 0 and 1 are the copies of the first stages: data parallelism inside a host, or between hosts.
            for hosts in ([one, one, two, two], [one, two, one, two]):
                for variables in (torchrun_variables, slurm_variables):
                    with self.subTest(hosts=[host.name for host in hosts], variables=variables.__name__):
                        self.finish(start(hosts, options, variables), expected)

    def test_three_hosts_train_as_one(self):
        options = [*MODEL, "--steps", "5", "--pp", "3", "--dp-replicate", "2", "--schedule", "ZBV"]
        expected = self.losses_on_one_host(options)
        with Hosts(3) as (one, two, three):
            for hosts in ([one, one, two, two, three, three], [one, two, three] * 2):
                with self.subTest(hosts=[host.name for host in hosts]):
                    self.finish(start(hosts, options, slurm_variables), expected)


class SlowLinkTest(HostsTest):
    """A link of 100 Mbit/s, against a simulation with its bandwidth and with the latency of a ping-pong."""

    MEGABITS = 100
    BATCH, MICROBATCHES, CONTEXT, DIM = 64, 4, 128, 64
    BYTES = BATCH // MICROBATCHES * CONTEXT * DIM * 4  # of an activation, and of its gradient

    def record(self, folder, name, hosts, schedule):
        path = os.path.join(folder, name + ".json")
        pp = len(hosts)
        self.finish(start(hosts, ["--json", "--pp", str(pp), "--layers", str(pp), "--dim", str(self.DIM), "--context",
                                  str(self.CONTEXT), "--batch", str(self.BATCH), "--microbatches", str(self.MICROBATCHES), "--steps",
                                  "3", "--schedule", schedule, "--record", path]))
        return path

    def latency_ms(self, one, two):
        """Half of the median ping-pong over TCP."""
        server = ("import socket; s = socket.socket(); s.bind(('', 6000)); s.listen(); print('up', flush=True); c, _ = s.accept()\n"
                  "while x := c.recv(1): c.sendall(x)")
        client = (f"import socket, time; s = socket.create_connection(('{one.address}', 6000)); t = []\n"
                  "for _ in range(101): b = time.perf_counter(); s.sendall(b'x'); s.recv(1); t.append(time.perf_counter() - b)\n"
                  "print(sorted(t)[50] / 2 * 1000)")
        listener = one.start([sys.executable, "-c", server], {})
        listener.stdout.readline()
        answer, _ = two.start([sys.executable, "-c", client], {}).communicate(timeout=60)
        listener.communicate(timeout=60)
        return float(answer)

    def costs_of(self, path, latency):
        """The computes as they were recorded, the transfers from what is known of the link."""
        with open(path) as file:
            run = json.load(file)
        self.assertEqual(run["recording"]["unit"], "ms")
        durations = {}
        for actions, times in zip(run["rows"], run["recording"]["times"]):
            for action, time_of in zip(actions, times):
                if compute := re.fullmatch(r"(\d+)([FB])\d+", action or ""):
                    durations.setdefault(compute[2], {}).setdefault(int(compute[1]), []).append(time_of[1] - time_of[0])
        means = {kind: [statistics.mean(of_stage[stage]) for stage in sorted(of_stage)] for kind, of_stage in durations.items()}
        half = [time_of / 2 for time_of in means["B"]]
        return {"version": 1, "unit": "ms", "forward": means["F"], "backward_input": half, "backward_weight": half,
                "latency": latency, "bandwidth": self.MEGABITS * 1e6 / 8 / 1000, "output_bytes": self.BYTES,
                "input_gradient_bytes": self.BYTES}

    def drift(self, path, costs):
        run = subprocess.run([PIPEWRIGHT, "simulate", path, "--costs", costs, "--json"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)["drift"]

    def slow_links(self, path, costs):
        """The two ranks of each slow link that the report names, the slowest first."""
        text = subprocess.run([PIPEWRIGHT, "simulate", path, "--costs", costs], capture_output=True, text=True, check=True).stdout
        return [{int(one), int(other)} for one, other in re.findall(r"^slow link: rank (\d+) to rank (\d+): ", text, re.MULTILINE)]

    def test_the_step_takes_as_long_as_simulated(self):
        with tempfile.TemporaryDirectory() as folder, Hosts(2) as (one, two):
            one.limit_bandwidth(self.MEGABITS)
            latency = self.latency_ms(one, two)
            for schedule in ("GPipe", "1F1B"):
                runs = []
                for attempt in range(5):
                    path = self.record(folder, f"{schedule}{attempt}", [one, two], schedule)
                    costs = os.path.join(folder, "costs.json")
                    with open(costs, "w") as file:
                        json.dump(self.costs_of(path, latency), file)
                    drift = self.drift(path, costs)
                    measured, predicted = drift["measured"]["makespan"], drift["predicted"]["makespan"]
                    runs.append((measured, measured / predicted - 1))
                print(schedule, [f"{measured:.0f} ms: {deviation:+.1%} of simulated" for measured, deviation in runs], flush=True)
                # Other jobs of this machine delay single runs.
                self.assertLess(abs(statistics.median(deviation for _, deviation in runs)), 0.1, schedule)

    def test_the_drift_report_names_the_link(self):
        with tempfile.TemporaryDirectory() as folder, Hosts(3) as hosts:
            fast = self.record(folder, "fast", hosts, "GPipe")
            hosts[2].limit_bandwidth(self.MEGABITS)
            slow = self.record(folder, "slow", hosts, "GPipe")
            wire = self.BYTES * 8 / (self.MEGABITS * 1000)  # ms
            slower = {(group["kind"], group["rank"], group["to"]): group["measured"] - group["predicted"]
                      for group in self.drift(slow, fast)["groups"] if group["kind"].startswith("SEND")}
            self.assertEqual(len(slower), 4)
            for (kind, rank, to), difference in slower.items():
                if 2 in (rank, to):
                    self.assertGreater(difference, 0.5 * wire, (kind, rank, to))
                else:
                    self.assertLess(difference, 0.5 * wire, (kind, rank, to))
            self.assertEqual(self.slow_links(slow, fast)[:2], [{1, 2}, {1, 2}])  # one per direction


class FailureTest(HostsTest):
    OPTIONS = [*MODEL, "--pp", "2", "--dp-shard", "2"]
    LIMIT = 4  # seconds, --timeout

    def start_long_job(self, hosts, limit=LIMIT):
        """A job of which the third rank prints; it has trained a few steps."""
        ranks = start(hosts, [*self.OPTIONS, "--steps", "1000000", "--timeout", str(limit), "--first-timeout", str(max(limit, 60))])
        for _ in range(3):
            self.assertIn("loss", ranks[2].stdout.readline())
        return ranks

    def ends(self, ranks, broken, limit=LIMIT + 5):
        """The errors of these ranks, each of which must fail by itself within `limit` seconds of `broken`."""
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
        took = time.monotonic() - broken
        print(f"all living ranks had ended after {took:.1f} s", flush=True)
        self.assertLess(took, limit, errors)
        for rank, error in zip(ranks, errors):
            self.assertIn(rank.returncode, (1, 3), error)
        return errors

    def test_a_link_that_is_down_for_two_seconds_changes_nothing(self):
        options = [*self.OPTIONS, "--steps", "60"]
        expected = self.losses_on_one_host(options)
        with Hosts(2) as (one, two):
            ranks = start([one, one, two, two], options)
            first = ranks[2].stdout.readline()
            self.assertAlmostEqual(json.loads(first)["loss"], expected[0], delta=1e-5)
            two.set_link(False)
            time.sleep(2)
            two.set_link(True)
            self.finish(ranks, expected[1:])

    def expect_named(self, error, rank, host):
        self.assertRegex(error, rf"rank {rank}\b.*host {host}\b")

    def test_a_link_that_is_down_for_good(self):
        with Hosts(2) as (one, two):
            ranks = self.start_long_job([one, one, two, two])
            broken = time.monotonic()
            two.set_link(False)
            errors = self.ends(ranks, broken)
            for error in errors[:2]:
                for rank in (2, 3):
                    self.expect_named(error, rank, "node2")
            for error in errors[2:]:
                self.expect_named(error, 0, "node1")

    def test_a_host_that_disappears(self):
        with Hosts(3) as (one, two, three):
            ranks = self.start_long_job([one, two, one, three])
            broken = time.monotonic()
            three.vanish()
            for error in self.ends(ranks[:3], broken):
                self.expect_named(error, 3, "node3")
                self.assertNotIn("rank 1 (", error)
            ranks[3].communicate()

    def test_the_host_of_the_store_disappears(self):
        with Hosts(2) as (one, two):
            ranks = self.start_long_job([one, one, two, two])
            broken = time.monotonic()
            one.vanish()
            for error in self.ends(ranks[2:], broken):
                self.expect_named(error, 0, "node1")
            for rank in ranks[:2]:
                rank.communicate()

    def expect_noticed_by_tcp(self, placement, vanishing, rank):
        """Within a minute, of a time limit of ten: no process tells, so only TCP does, after 15 s."""
        with self.subTest(vanishing=f"node{vanishing}"), Hosts(3) as hosts:
            ranks = self.start_long_job([hosts[number - 1] for number in placement], limit=600)
            broken = time.monotonic()
            hosts[vanishing - 1].vanish()
            living = [process for process, number in zip(ranks, placement) if number != vanishing]
            for error in self.ends(living, broken, limit=60):
                self.expect_named(error, rank, f"node{vanishing}")
            for process, number in zip(ranks, placement):
                if number == vanishing:
                    process.communicate()

    def test_a_host_that_disappears_long_before_the_time_limit(self):
        self.expect_noticed_by_tcp([1, 2, 2, 3], vanishing=3, rank=3)

    def test_the_host_of_the_store_disappears_long_before_the_time_limit(self):
        self.expect_noticed_by_tcp([1, 1, 2, 3], vanishing=1, rank=0)


if __name__ == "__main__":
    TRAIN_GPT, PIPEWRIGHT = map(os.path.abspath, sys.argv[1:])
    enter_namespaces()
    unittest.main(argv=sys.argv[:1], verbosity=2)
