"""Compares generating and lowering Interleaved1F1B with PyTorch's own code, for P=32, V=4, M=512 (393,728 actions).

  bazel test --config=peer --nocache_test_results --test_output=all //bench:pytorch_compile

Prints, for alternating pairs, both times and their ratio (PyTorch / pipewright; above 1, pipewright is faster), then the
median ratio, all under each setting of malloc_settings.py. Both times are measured inside the process, so starting it does
not count. Fails only if the two disagree about the number of actions; no speed is required.
"""

import statistics
import subprocess
import sys
import time

from torch.distributed.pipelining import schedules as peer

from malloc_settings import run_under_each

OURS, RANKS, PER_RANK, MICROBATCHES, PAIRS = sys.argv[1], 32, 4, 512, 7


class Stage:
    def __init__(self, index):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, RANKS * PER_RANK, RANKS, 0
        self.group, self.has_backward, self.submod = None, False, None
        self.is_first, self.is_last = index == 0, index == RANKS * PER_RANK - 1


def theirs():
    start = time.perf_counter()
    schedule = peer.ScheduleInterleaved1F1B([Stage(s) for s in range(0, RANKS * PER_RANK, RANKS)], MICROBATCHES,
                                            loss_fn=lambda a, b: a)
    seconds = time.perf_counter() - start
    return seconds, sum(len(row) for row in schedule.pipeline_order_with_comms.values())


def ours():
    done = subprocess.run([OURS, "--benchmark_filter=make_and_lower_interleaved/32/4/512", "--benchmark_format=csv"],
                          capture_output=True, text=True, check=True)
    header, row = [line.split(",") for line in done.stdout.strip().split("\n")[-2:]]
    values = dict(zip([name.strip('"') for name in header], row))
    assert values["time_unit"] == "ms", values
    return float(values["real_time"]) / 1000, int(float(values["actions"]))


def main():
    ratios = []
    for pair in range(PAIRS):
        (slow, their_actions), (fast, our_actions) = theirs(), ours()
        assert their_actions == our_actions, (their_actions, our_actions)
        ratios.append(slow / fast)
        print(f"pair {pair}: PyTorch {slow:.2f} s, ours {1000 * fast:.1f} ms, ratio {slow / fast:.0f}, {our_actions} actions", flush=True)
    print(f"median ratio: {statistics.median(ratios):.0f}")


run_under_each(main)
