"""train_gpt under torchrun's agents on two hosts: it trains as on one, and a killed rank ends the job on both.

Run by tests/hosts/run --torch: torchrun_test.py SITE_PATH TRAIN_GPT. hosts.py makes the hosts.
"""

import json
import os
import select
import subprocess
import sys
import unittest

from hosts import Hosts, enter_namespaces

MODEL = ["--layers", "4", "--dim", "32", "--context", "32", "--json", "--schedule", "Interleaved1F1B", "--pp", "2", "--dp-replicate", "2"]


def losses(output):
    return [line["loss"] for line in map(json.loads, output.splitlines()) if "loss" in line]


class TorchrunTest(unittest.TestCase):
    def start(self, hosts, *options):
        """An agent with two ranks on each host."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", "node1:29500", "--no-python", TRAIN_GPT, *MODEL, *options]
        return [host.start(command, {"PYTHONPATH": SITE}) for host in hosts]

    def test_two_hosts_train_as_one(self):
        options = ["--steps", "3"]
        alone = subprocess.run([TRAIN_GPT, *MODEL, *options], capture_output=True, text=True, check=True)
        with Hosts(2) as hosts:
            agents = self.start(hosts, *options)
            outputs = [agent.communicate(timeout=240) for agent in agents]
            self.assertEqual([agent.returncode for agent in agents], [0, 0], outputs)
        found = [loss for out, _ in outputs for loss in losses(out)]
        self.assertEqual(len(found), 3, outputs)
        for expected, loss in zip(losses(alone.stdout), found, strict=True):
            self.assertAlmostEqual(loss, expected, delta=1e-5)

    def test_a_killed_rank_ends_the_job_on_both_hosts(self):
        with Hosts(2) as hosts:
            agents = self.start(hosts, "--steps", "1000000")
            # The last rank prints, and torchrun ranks the hosts in the order in which they come.
            [printing, *_], _, _ = select.select([agent.stdout for agent in agents], [], [], 240)
            for _ in range(3):
                self.assertIn("loss", printing.readline())
            # Host 2 has its own processes, of which these are the two ranks.
            victim = hosts[1].run("pgrep", "-f", f"^{TRAIN_GPT}").split()[0]
            hosts[1].run("kill", "-9", victim)
            errors = [agent.communicate(timeout=240)[1] for agent in agents]
            self.assertEqual([agent.returncode for agent in agents], [1, 1], errors)
            self.assertIn("Signal 9 (SIGKILL)", errors[1])
            self.assertRegex(errors[0], r"rank \d: .*host node2\b")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        SITE = file.read().strip()
    TRAIN_GPT = os.path.abspath(sys.argv[2])
    enter_namespaces()
    unittest.main(argv=sys.argv[:1], verbosity=2)
