"""Ranks of torch.distributed over Gloo, each a process. PIPEWRIGHT_TEST_DEVICE=cuda gives each a GPU, which ranks may share."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEVICE = os.environ.get("PIPEWRIGHT_TEST_DEVICE", "cpu")


def use_device(rank):
    """Makes the device of this process the default one of its tensors."""
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device(DEVICE)


def run_on_ranks(work, ranks, *arguments, start_method="spawn"):
    """Calls work(rank, *arguments) on each rank of a new group. What a rank raises is raised here.

    With "fork" none of them has to import torch again, but the calling process must not have run a backward.
    What a rank puts into a multiprocessing.SimpleQueue arrives; what it puts into a Queue may be lost.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run_on_rank, (ranks, os.path.join(folder, "store"), work, arguments), nprocs=ranks,
                           start_method=start_method)


def _run_on_rank(rank, ranks, store, work, arguments):
    torch.set_num_threads(1)
    use_device(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    work(rank, *arguments)
    dist.barrier()
    # One time in some hundred on a busy machine, PyTorch's own threads abort a process that ends as usual here.
    os._exit(0)
