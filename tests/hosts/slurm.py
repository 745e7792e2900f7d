"""A real Slurm on the hosts of hosts.py: Debian's slurmctld on the first of them, slurmd and munged on each.

    with Hosts(2) as hosts, Slurm(hosts) as slurm:
        slurm.run("srun", "-n", "4", "hostname")  # what it prints; as on the first host
        slurm.start("srun", "-n", "4", "hostname")  # a subprocess.Popen
"""

import os
import subprocess
import tempfile
import time

PATIENCE = 60  # seconds, for its start

CONFIGURATION = """
ClusterName=test
SlurmctldHost={first.name}({first.address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/own/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/own/slurmd.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/own
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    def __init__(self, hosts, cpus=os.cpu_count()):
        """Each node claims to have so many CPUs."""
        self.hosts = hosts
        self.cpus = cpus
        self.daemons = []

    def _daemon(self, host, *command):
        with open(os.path.join(self.folder, f"{os.path.basename(command[0])}.{host.name}.out"), "w") as output:
            self.daemons.append(host.start(command, self.variables, stdout=output, stderr=output))

    def __enter__(self):
        # Sockets need short paths. A daemon of a step may still write while its host ends, and leaves a log behind then.
        self.scratch = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
        self.folder = folder = self.scratch.name
        self.variables = {"SLURM_CONF": f"{folder}/slurm.conf"}
        os.mkdir(f"{folder}/own")
        os.mkdir(f"{folder}/state")
        with open(f"{folder}/slurm.conf", "w") as file:
            file.write(CONFIGURATION.format(folder=folder, first=self.hosts[0]))
            for host in self.hosts:
                file.write(f"NodeName={host.name} NodeAddr={host.address} CPUs={self.cpus} State=UNKNOWN\n")
        with open(f"{folder}/key", "wb") as key:
            key.write(os.urandom(1024))
        os.chmod(f"{folder}/key", 0o600)
        for host in self.hosts:
            # Each host has its own files at the same path.
            os.mkdir(f"{folder}/{host.name}")
            host.run("mount", "--bind", f"{folder}/{host.name}", f"{folder}/own")
            own = f"{folder}/own"
            self._daemon(host, "/usr/sbin/munged", "--foreground", "--force", "--key-file", f"{folder}/key", "--socket",
                         f"{own}/munge", "--pid-file", f"{own}/munged.pid", "--seed-file", f"{own}/seed", "--log-file", f"{own}/munged.log")
            self._wait(lambda: os.path.exists(f"{folder}/{host.name}/munge"))
        self._daemon(self.hosts[0], "/usr/sbin/slurmctld", "-D")
        for host in self.hosts:
            self._daemon(host, "/usr/sbin/slurmd", "-D", "-N", host.name)
        self._wait(lambda: self.run("sinfo", "--noheader", "--format", "%T %D", check=False).strip() == f"idle {len(self.hosts)}")
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for host in self.hosts:
            host.holder.kill()  # with whatever has not ended
        for daemon in self.daemons:
            daemon.wait()
        self.scratch.cleanup()

    def _wait(self, is_there):
        deadline = time.time() + PATIENCE
        while not is_there():
            if time.time() > deadline:
                raise RuntimeError("Slurm does not start:\n" + self.logs())
            time.sleep(0.1)

    def logs(self):
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.folder, name)) as file:
                    texts.append(f"{name}:\n{file.read()}")
        return "\n".join(texts)

    def start(self, *command):
        return self.hosts[0].start(command, self.variables)

    def run(self, *command, check=True):
        process = self.start(*command)
        out, error = process.communicate(timeout=120)
        if check and process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {error}\n{self.logs()}")
        return out
