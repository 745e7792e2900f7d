"""How much slower making and lowering a schedule is through Python: python_compile.py COMPILE_BENCH

Needs the installed Python package. COMPILE_BENCH is the binary of //bench:compile_bench:

  bazel build //bench:compile_bench && python3 bench/python_compile.py bazel-bin/bench/compile_bench

Interleaved1F1B for 32 ranks, 4 stages per rank and 512 microbatches, 393,728 actions. lower() in Python also verifies what
it returns, and so does the C++ side, schedule::compile(). CPU times, medians of 7 runs in turn, under each setting of
malloc_settings.py.
"""

import json
import statistics
import subprocess
import sys
import time

import pipewright as pw

from malloc_settings import run_under_each


def cpp_seconds(binary):
    command = [binary, "--benchmark_filter=^compile_interleaved/", "--benchmark_format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    run, = json.loads(done.stdout)["benchmarks"]
    assert run["time_unit"] == "ms", run
    return run["cpu_time"] / 1000


def python_seconds():
    """The mean of 40 calls, like those of the benchmark; freeing a program is not measured there either."""
    taken = 0.0
    for _ in range(40):
        started = time.process_time()
        program = pw.make("Interleaved1F1B", ranks=32, stages=128, microbatches=512).lower()
        taken += time.process_time() - started
        assert len(program) == 393_728
        del program
    return taken / 40


def main():
    cpp, python = [], []
    for _ in range(7):
        cpp.append(cpp_seconds(sys.argv[1]))
        python.append(python_seconds())
    ratios = [one / other for one, other in zip(python, cpp)]
    print(f"make, lower and verify 393,728 actions: {1e3 * statistics.median(cpp):.1f} ms in C++, {1e3 * statistics.median(python):.1f} ms through "
          f"Python, ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    run_under_each(main)
