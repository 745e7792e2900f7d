"""train_gpt under a real Slurm of one and of two nodes: srun and sbatch, a killed rank, and a job that is requeued.

Run by Bazel with tag `hosts`: slurm_test.py TRAIN_GPT. hosts.py makes the nodes, slurm.py the Slurm.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

from hosts import Hosts, enter_namespaces
from slurm import Slurm

OPTIONS = ["--layers", "2", "--dim", "32", "--context", "32", "--json", "--pp", "2", "--dp-shard", "2"]
SRUN = ["srun", "--overcommit", "--ntasks", "4"]
PATIENCE = 120  # seconds


def losses(output):
    """Of the lines that are complete: others are being written."""
    lines = output.split("\n")[:-1]
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    return [one.get("loss", one.get("held_back_loss")) for one in objects]


def wait_for(is_true):
    """Whether that becomes true."""
    deadline = time.time() + PATIENCE
    while time.time() < deadline:
        if is_true():
            return True
        time.sleep(0.1)
    return False


class SlurmTest(unittest.TestCase):
    def expect_losses(self, output, steps):
        threads = subprocess.run([TRAIN_GPT, *OPTIONS, "--steps", str(steps)], capture_output=True, text=True, check=True)
        expected, found = losses(threads.stdout), losses(output)
        self.assertEqual(len(expected), steps + 1)
        self.assertEqual(len(found), steps + 1, output)
        for one, other in zip(expected, found):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def submit(self, slurm, folder, lines):
        """Submits the script of these lines. Returns the job's number and the file that it writes to."""
        script, output = os.path.join(folder, "job.sh"), os.path.join(folder, "output")
        with open(script, "w") as file:
            file.write("\n".join(["#!/bin/bash", "#SBATCH --ntasks=4 --overcommit", *lines]) + "\n")
        return slurm.run("sbatch", "--parsable", "--output", output, script).strip(), output

    def expect_state(self, slurm, job, state, output):
        def is_there():
            return f"JobState={state} " in slurm.run("scontrol", "show", "job", job)
        self.assertTrue(wait_for(is_there), slurm.run("scontrol", "show", "job", job) + read(output) + slurm.logs())

    def test_one_node(self):
        with Hosts(1) as hosts, Slurm(hosts) as slurm:
            self.expect_losses(slurm.run(*SRUN, TRAIN_GPT, *OPTIONS, "--steps", "5"), 5)
            with tempfile.TemporaryDirectory() as folder:
                job, output = self.submit(slurm, folder, ["srun " + " ".join([TRAIN_GPT, *OPTIONS, "--steps 4"])])
                self.expect_state(slurm, job, "COMPLETED", output)
                self.expect_losses(read(output), 4)

    def test_two_nodes(self):
        with Hosts(2) as hosts, Slurm(hosts) as slurm:
            for distribution in ("block", "cyclic"):
                with self.subTest(distribution=distribution):
                    self.expect_losses(slurm.run(*SRUN, "--nodes", "2", "--distribution", distribution, TRAIN_GPT, *OPTIONS, "--steps",
                                                 "5"), 5)

    def test_the_script_of_the_documents(self):
        """That of docs/cluster.md, word for word: 16 ranks on two nodes. Its last steps are not waited for."""
        with open("docs/cluster.md") as file:
            script = "#!/bin/bash" + file.read().split("```bash\n#!/bin/bash")[1].split("```")[0]
        with Hosts(2) as hosts, Slurm(hosts, cpus=8) as slurm, tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "job.sh"), "w") as file:
                file.write(script)
            path = os.path.dirname(TRAIN_GPT) + ":" + os.environ["PATH"]
            job = slurm.run("env", "PATH=" + path, "sbatch", "--parsable", "--chdir", folder, os.path.join(folder, "job.sh")).strip()
            log = os.path.join(folder, f"train-{job}.log")
            self.assertTrue(wait_for(lambda: len(losses(read(log))) >= 3), read(log) + slurm.logs())
            slurm.run("scancel", job)
            alone = subprocess.run([TRAIN_GPT, "--schedule", "GPipe", "--pp", "1", "--microbatches", "16", "--batch", "32", "--layers",
                                    "16", "--steps", "3", "--json"], capture_output=True, text=True, check=True)
            for one, other in zip(losses(alone.stdout)[:3], losses(read(log))[:3]):
                self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_killed_rank_ends_the_others(self):
        """srun itself lets them live."""
        with Hosts(2) as hosts, Slurm(hosts) as slurm:
            job = slurm.start(*SRUN, "--nodes", "2", "--distribution", "block", "--kill-on-bad-exit=0", "--label", TRAIN_GPT, *OPTIONS,
                              "--steps", "1000000")
            for _ in range(3):
                self.assertIn("loss", job.stdout.readline())
            hosts[1].run("sh", "-c", "for p in /proc/[0-9]*; do if tr '\\0' '\\n' <$p/environ | grep -qx SLURM_PROCID=3 && "
                         "[ $(cat $p/comm) = train_gpt ]; then kill -9 ${p#/proc/}; fi; done")
            _, error = job.communicate(timeout=PATIENCE)
            self.assertNotEqual(job.returncode, 0)
            for rank in (0, 1, 2):
                own = [line for line in error.splitlines() if line.startswith(f"{rank}: ")]
                self.assertTrue(any("error: rank" in line for line in own), error)
                self.assertTrue(any("rank 3: pp 1, dp_replicate 0, dp_shard 1" in line and "host node2" in line and
                                    "has ended, or its host is unreachable" in line for line in own), error)

    def test_a_job_that_is_warned_saves_and_is_requeued(self):
        """The script of docs/operations.md, with the options of a small model."""
        steps = 200
        with open("docs/operations.md") as file:
            script = file.read().split("```bash\n#SBATCH")[1].split("```")[0].splitlines()
        lines = ["#SBATCH" + script[0], *script[1:]]
        trainers = [index for index, line in enumerate(lines) if line.startswith("srun train_gpt")]
        self.assertEqual(len(trainers), 1, lines)
        with Hosts(2) as hosts, Slurm(hosts) as slurm, tempfile.TemporaryDirectory() as folder:
            flags = lines[trainers[0]].split("train_gpt ")[1].replace("--pp 8 ", "").replace("/scratch/run", folder + "/run")
            lines[trainers[0]] = " ".join(["srun", TRAIN_GPT, *OPTIONS, "--steps", str(steps), flags])
            job, output = self.submit(slurm, folder, ["#SBATCH --nodes=2", *lines])
            self.assertTrue(wait_for(lambda: len(losses(read(output))) > 3), read(output) + slurm.logs())
            # As Slurm does before the time limit: to the processes of the steps, not to the script.
            slurm.run("scancel", "--signal=USR1", job)
            # Slurm starts it again, after two minutes unless it is asked to do so earlier. Within the second in which it was
            # requeued, slurmd takes the new credential for the revoked one, and the job fails.
            self.expect_state(slurm, job, "PENDING", output)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
            self.expect_state(slurm, job, "COMPLETED", output)
            self.assertIn("Restarts=1", slurm.run("scontrol", "show", "job", job))
            text = read(output)
            self.assertEqual(text.count("saved and stopped by a signal"), 4, text)
            self.assertIn("resume", text)
            self.expect_losses(text, steps)


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    TRAIN_GPT = os.path.abspath(sys.argv[1])
    enter_namespaces()
    unittest.main(argv=sys.argv[:1], verbosity=2)
