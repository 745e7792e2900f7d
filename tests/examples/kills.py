"""Kills train_gpt with SIGKILL, at random steps and at random moments of saving, and resumes it each time: every loss is that
of the undisturbed run, bit for bit on the same mesh, and within 1e-5 on other meshes.

kills.py TRAIN_GPT PIPEWRIGHT TEXT [KILLS [SEED]]
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TRAIN_GPT, PIPEWRIGHT, TEXT = sys.argv[1:4]
KILLS = int(sys.argv[4]) if len(sys.argv) > 4 else 50
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else 0

STEPS = 40
MODEL = [TRAIN_GPT, "--data", TEXT, "--layers", "4", "--dim", "32", "--context", "16", "--batch", "16", "--clip", "0.5",
         "--steps", str(STEPS), "--json"]
MESH = ["--pp", "2", "--dp-replicate", "2"]
OTHER_MESHES = ["--pp 4", "--pp 1 --dp-shard 4", "--pp 2 --tp 2 --schedule ZBV", "--pp 1 --schedule GPipe"]
LIMIT = 300  # seconds, of any run


def losses_of(lines):
    """By step; the key STEPS has the held-back loss."""
    losses = {}
    for line in lines:
        if "{" not in line:
            continue
        try:
            values = json.loads(line[line.index("{"):])
        except ValueError:
            continue  # the run was killed while it wrote the line
        losses[values.get("step", STEPS)] = values["loss"] if "step" in values else values["held_back_loss"]
    return losses


def run(*flags):
    done = subprocess.run([*MODEL, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT, text=True)
    assert done.returncode == 0, (flags, done.stderr)
    return losses_of(done.stdout.splitlines())


def saved_step(folder):
    """The last step that a resumed run may rely on."""
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return int(file.read().strip().rpartition("-")[2])
    except FileNotFoundError:
        return 0


def unfinished(folder):
    """What is being written, or was when a run ended: names, with their times."""
    if not os.path.isdir(folder):
        return set()
    with os.scandir(folder) as entries:
        return {(entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name.endswith(".tmp")}


def await_save(folder, process):
    left = unfinished(folder)  # by an earlier run
    while process.poll() is None and unfinished(folder) <= left:
        time.sleep(0.0005)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


def killed_run(folder, rng):
    """Resumes the run in `folder`, kills it, and returns its losses and what was killed."""
    over_processes, in_save = rng.random() < 0.5, rng.random() < 0.5
    launch = [PIPEWRIGHT, "launch", "-n", "4", "--"] if over_processes else []
    flags = ["--save", folder, "--save-every", "1", "--resume", "latest"]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*launch, *MODEL, *MESH, *flags], stdout=output, stderr=subprocess.STDOUT)
        first = saved_step(folder)
        until = first + rng.randint(0, 6)
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and (saved_step(folder) < until or saved_step(folder) == 0 < until):
            assert time.monotonic() < deadline, "the run hangs"
            time.sleep(0.002)
        if in_save:
            await_save(folder, process)
        time.sleep(rng.uniform(0, 0.03 if in_save else 0.2))
        victim = process.pid
        if over_processes and process.poll() is None:
            victim = rng.choice([process.pid, *children_of(process.pid)])
        was_alive = process.poll() is None
        if was_alive:
            os.kill(victim, signal.SIGKILL)
        process.wait(timeout=LIMIT)
        # The lock is released when the last process has ended.
        subprocess.run(["flock", "-w", str(LIMIT), os.path.join(folder, ".lock"), "true"], check=True)
        output.seek(0)
        text = output.read()
    return losses_of(text.splitlines()), was_alive, first, f"{'process' if over_processes else 'threads'}, " \
        f"{'saving' if in_save else 'training'}", text


def main():
    rng = random.Random(SEED)
    scratch = tempfile.mkdtemp()
    began = time.monotonic()
    expected = run(*MESH)
    assert sorted(expected) == list(range(STEPS + 1)), expected
    folder, kills, resumed, in_saves = os.path.join(scratch, "0"), 0, 0, 0
    os.mkdir(folder)
    meshes = list(OTHER_MESHES)
    while kills < KILLS:
        left = unfinished(folder)
        losses, was_killed, first, how, text = killed_run(folder, rng)
        assert losses or was_killed, text
        for step, loss in losses.items():
            assert step >= first, f"resumed at step {step}, although {first} were saved"
            assert loss == expected[step], f"kill {kills}, step {step}: {loss!r} instead of {expected[step]!r}"
        if not was_killed:
            assert STEPS in losses, text
            folder = os.path.join(scratch, str(kills) + "-again")  # it reached its end: from the beginning
            os.mkdir(folder)
            continue
        kills += 1
        last = saved_step(folder)
        resumed += last > 0
        hit_save = not unfinished(folder) <= left
        in_saves += hit_save
        print(f"kill {kills} ({how}): steps {min(losses, default='-')} to {max(losses, default='-')}, saved {last}"
              f"{', the next one in part' if hit_save else ''}", flush=True)
        # Spread over the kills, the same checkpoint on each other mesh. The last is due long before the last kill, which may leave
        # no checkpoint.
        if meshes and last > 0 and kills * len(OTHER_MESHES) >= KILLS * (len(OTHER_MESHES) - len(meshes)):
            mesh = meshes.pop(0)
            other = run(*mesh.split(), "--resume", os.path.join(folder, f"step-{last:06}"))
            assert sorted(other) == list(range(last, STEPS + 1)), (mesh, other)
            for step, loss in other.items():
                assert abs(loss - expected[step]) <= 1e-5, f"{mesh}, step {step}: {loss} instead of {expected[step]}"
            print(f"  {mesh}: steps {last} to {STEPS - 1} within 1e-5", flush=True)
    end = run(*MESH, "--save", folder, "--resume", "latest")
    assert STEPS in end and all(loss == expected[step] for step, loss in end.items()), end
    assert resumed > KILLS / 2, resumed
    assert in_saves >= KILLS / 10, f"only {in_saves} of {kills} kills hit a save"
    shutil.rmtree(scratch)
    print(f"{kills} kills, {resumed} with a checkpoint, {in_saves} within a save; other meshes left out: {meshes}; "
          f"{time.monotonic() - began:.0f} s")
    assert not meshes


main()
