"""Completions and the man page as installed, in the real bash, zsh, fish and man: shells.py PREFIX

Each shell gets a line and a Tab, as from a user; what it then would run is compared with what the user means.
"""

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

PREFIX = os.path.abspath(sys.argv.pop(1))

# A line up to the Tab, and the words that the shell runs.
LINES = [
    ("pipewright va", "validate"),
    ("pipewright print --mic", "print --microbatches"),
    ("pipewright print --format ti", "print --format timeline"),
    ("pipewright print ZBVZ", "print ZBVZeroBubble"),
    ("pipewright print 1F1B -o pla", "print 1F1B -o plan.csv"),
    ("pipewright validate pla", "validate plan.csv"),
    ("pipewright search --placement fr", "search --placement free"),
    ("pipewright completion fi", "completion fish"),
]


class Terminal:
    """An interactive shell on a pseudo-terminal, in a folder with the file plan.csv."""

    def __init__(self, command, setup):
        self.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(self.folder.name, "plan.csv"), "w", encoding="utf-8"):
            pass
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(self.folder.name)
            os.environ.update(TERM="dumb", HOME=self.folder.name, PATH=f"{PREFIX}/bin:{os.environ['PATH']}")
            os.execvp(command[0], command)
        self.send(f"{setup}; pipewright() {{ echo GOT: $* :END; }}; echo REA''DY\n")
        self.read_until(rb"\nREADY")

    def send(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, pattern):
        output, end = b"", time.monotonic() + 30
        while not re.search(pattern, output):
            if time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} in {output[-400:]!r}")
            if select.select([self.terminal], [], [], 0.1)[0]:
                output += os.read(self.terminal, 65536)
        return output

    def complete(self, line):
        self.send(line + "\t\n")
        return re.search(rb"\nGOT: (.*?) :END", self.read_until(rb"\nGOT: .*? :END")).group(1).decode()

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)
        self.folder.cleanup()


class CompletionTest(unittest.TestCase):
    def check(self, command, setup):
        terminal = Terminal(command, setup)
        self.addCleanup(terminal.close)
        for line, expected in LINES:
            with self.subTest(line):
                self.assertEqual(terminal.complete(line), expected)

    def test_bash(self):
        self.check(["bash", "--norc", "-i"], f"source {PREFIX}/share/bash-completion/completions/pipewright")

    # The first Tab loads the function.
    def test_zsh(self):
        self.check(["zsh", "-f", "-i"], f"fpath=({PREFIX}/share/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D")

    def test_zsh_sourced(self):
        self.check(["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; "
                                        f"source {PREFIX}/share/zsh/site-functions/_pipewright")

    # fish says itself what it would offer; it finds the file in its own folders.
    def test_fish(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "plan.csv"), "w", encoding="utf-8"):
                pass
            environment = dict(os.environ, HOME=folder, XDG_DATA_DIRS=f"{PREFIX}/share", PATH=f"{PREFIX}/bin:{os.environ['PATH']}")
            for line, expected in LINES:
                with self.subTest(line):
                    done = subprocess.run(["fish", "-c", f"complete -C '{line}'"], cwd=folder, env=environment,
                                          capture_output=True, text=True, timeout=30, check=True)
                    words = [offer.split("\t")[0] for offer in done.stdout.splitlines()]
                    self.assertEqual(words, [expected.split()[-1]], done.stderr)


class ManPageTest(unittest.TestCase):
    def test_page(self):
        environment = dict(os.environ, MANWIDTH="80", LC_ALL="C.UTF-8", MAN_KEEP_FORMATTING="", MANROFFSEQ="")
        done = subprocess.run(["man", "--warnings", "-M", f"{PREFIX}/share/man", "pipewright"], env=environment,
                              capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(done.stderr, "")
        page = re.sub(".\b", "", done.stdout)
        for section in ("NAME", "SYNOPSIS", "COMMANDS", "OPTIONS", "EXIT STATUS", "EXAMPLES"):
            self.assertIn(f"\n{section}\n", page)
        self.assertIn("\n       --placement PLACEMENT\n", page)
        self.assertLessEqual(max(map(len, page.splitlines())), 80)


if __name__ == "__main__":
    unittest.main()
