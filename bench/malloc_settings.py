"""Runs a comparison of processes under three settings of malloc, each the same for both sides.

Left to itself, as in the first of them, glibc keeps or returns the memory of a freed program depending on what else lies on
the heap, down to the format in which a benchmark prints its results, and getting 8 MB again from the kernel takes as long as
lowering into it.
"""

import os
import subprocess
import sys

SETTINGS = {
    "malloc as it is": "",
    "every large block is new memory": "glibc.malloc.mmap_threshold=65536",
    "freed memory is kept": "glibc.malloc.trim_threshold=17179869184:glibc.malloc.mmap_threshold=17179869184",
}


def run_under_each(main):
    """Calls main() in one new process per setting, or at once where GLIBC_TUNABLES is set: processes started by main()
    inherit the setting."""
    if "GLIBC_TUNABLES" in os.environ:
        main()
        return
    for what, tunables in SETTINGS.items():
        print(f"{what}:", flush=True)
        subprocess.run([sys.executable, *sys.argv], check=True, env=os.environ | {"GLIBC_TUNABLES": tunables})
