"""Several hosts on one machine: network namespaces that are joined by a bridge.

    with Hosts(2) as (one, two):
        ranks = [one.start(["train_gpt", ...], {"RANK": "0", ...}), two.start(["train_gpt", ...], {"RANK": "1", ...})]
        two.limit_bandwidth(100)  # Mbit/s, in both directions
        two.set_link(False)       # the cable is pulled
        two.vanish()              # all its processes are gone at once, and nobody is told

Each host has its own network, processes, host name (node1, node2, ...) and /etc/hosts with the names of all. The bridge is in
namespaces of this process, which enter_namespaces() makes, so nothing of the machine changes, and nothing is left behind.
"""

import os
import subprocess
import sys
import tempfile

MARK = "PIPEWRIGHT_TEST_NAMESPACES"


def enter_namespaces():
    """Runs this program again in its own namespaces of networks, mounts and processes; returns there."""
    if MARK in os.environ:
        return
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    os.environ[MARK] = "1"
    os.execvp(command[0], command + [sys.executable] + sys.argv)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


class Host:
    def __init__(self, number, names_file):
        self.name = f"node{number}"
        self.address = f"10.77.0.{number}"
        self.port = f"port{number}"  # of the bridge
        setup = f"hostname {self.name} && mount --bind {names_file} /etc/hosts && echo ready && exec sleep infinity"
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                                        "sh", "-c", setup], stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"cannot make the namespaces of {self.name}")
        # The first process of the host: all others end with it.
        self.init = run("ps", "-o", "pid=", "--ppid", str(self.holder.pid)).strip()
        run("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.init)
        run("ip", "link", "set", self.port, "master", "bridge", "up")
        self.run("ip", "address", "add", self.address + "/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "link", "set", "lo", "up")

    def _inside(self, command):
        return ["nsenter", "--target", self.init, "--net", "--uts", "--mount", "--pid", *command]

    def run(self, *command):
        return run(*self._inside(command))

    def start(self, command, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
        return subprocess.Popen(self._inside(command), env={**os.environ, **variables}, stdout=stdout, stderr=stderr, text=True)

    def limit_bandwidth(self, megabits):
        limit = ["root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "500ms"]
        run("tc", "qdisc", "replace", "dev", self.port, *limit)
        self.run("tc", "qdisc", "replace", "dev", "eth0", *limit)

    def set_link(self, up):
        run("ip", "link", "set", self.port, "up" if up else "down")

    def vanish(self):
        self.set_link(False)
        self.holder.kill()
        self.holder.wait()


class Hosts:
    def __init__(self, count):
        self.count = count
        self.hosts = []

    def __enter__(self):
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "link", "set", "bridge", "up")
        self.names = tempfile.NamedTemporaryFile("w", suffix=".hosts")
        lines = ["127.0.0.1 localhost"] + [f"10.77.0.{number} node{number}" for number in range(1, self.count + 1)]
        self.names.write("\n".join(lines) + "\n")
        self.names.flush()
        for number in range(1, self.count + 1):
            self.hosts.append(Host(number, self.names.name))
        return self.hosts

    def __exit__(self, *_):
        for host in self.hosts:
            host.holder.kill()
            host.holder.wait()
            host.holder.stdout.close()
            # Goes with the host's namespace, but later, and so would its name.
            subprocess.run(["ip", "link", "delete", host.port], stderr=subprocess.DEVNULL)
        run("ip", "link", "delete", "bridge")
        self.names.close()
