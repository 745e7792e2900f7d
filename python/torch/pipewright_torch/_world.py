"""The world of this process: made from torch.distributed's, by way of its store."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import weakref

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _native

_world = None  # for as long as torch.distributed has the process group that it was made for
_device = None  # of the tensors that it communicates
_default_group = None  # a weak reference to that group, once it exists
_schedules = weakref.WeakSet()


def world(device: torch.device, timeout: float | None = None) -> _native.World:
    """Returns the world of torch.distributed's default group. The first call is collective over all of its ranks.

    It communicates tensors on `device`; a process has one world, with one device. `timeout` is in seconds, that of
    connecting and of operations without their own; by default ten minutes.
    """
    global _world, _default_group
    if not dist.is_initialized():
        raise ValueError("torch.distributed has no default process group; call torch.distributed.init_process_group() first")
    group = dist.group.WORLD
    if _world is not None and _default_group is None:  # register_backend() has made it for this group
        _default_group = weakref.ref(group)
    if _world is None or _default_group() is not group:
        close()
        _make(device, c10d._get_default_store(), dist.get_rank(), dist.get_world_size(), timeout or 600.0)
        _default_group = weakref.ref(group)
    if device != _device:
        raise ValueError(f"stages: expected parameters on {_device}, the device of this process's groups, got {device}")
    return _world


def _make(device: torch.device, store: dist.Store, rank: int, size: int, timeout: float) -> None:
    """Connects this rank to a store of our own, which rank 0 hosts and announces in `store`."""
    global _world, _device
    nccl = _nccl_backends() if device.type == "cuda" else None
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    key = f"pipewright/world/{restarts}"
    if rank > 0:
        host, port = store.get(key).decode().rsplit(":", 1)
        _world, _device = _native.World(rank, size, host, int(port), restarts, timeout, device, nccl), device
        return
    host = _host_of(store)
    for attempt in range(8):
        port = _free_port() if size > 1 else 0
        try:
            _world, _device = _native.World(rank, size, host, port, restarts, timeout, device, nccl), device
        except RuntimeError as error:  # another process has taken the port meanwhile
            if "EADDRINUSE" not in str(error) or attempt == 7:
                raise
        else:
            store.set(key, f"{host}:{port}")
            return


def _nccl_backends():
    try:
        from . import _nccl
    except ImportError as error:
        raise RuntimeError("stages on a GPU need NCCL, and pipewright_torch was built without it, or for another torch than the "
                           f"installed one, {torch.__version__}: {error}") from error
    return _nccl.backends


def register_backend(device: str | None = None) -> None:
    """Registers the backend `pipewright`: init_process_group("pipewright") makes every group one of our world.

    Its tensors are on `device`: "cpu", over Gloo, or "cuda", over NCCL, which is the default where there is a GPU, and then
    the process's current one: call torch.cuda.set_device() before init_process_group(). That of "cpu:gloo,cuda:pipewright"
    has groups for the tensors of the CPU as well.

    A failure on any rank ends the collectives of all of its groups with the first cause, also those of FSDP2, DDP and DTensor.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    dist.Backend.register_backend("pipewright", functools.partial(_make_group, device), extended_api=True, devices=[device])


def _make_group(device_type: str, options, _):
    device = torch.device(device_type, torch.cuda.current_device()) if device_type == "cuda" else torch.device("cpu")
    if not dist.is_initialized():  # it is the default group itself
        close()
        _make(device, options.store, options.group_rank, options.group_size, options.timeout.total_seconds())
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return (_world if _default_group is None else world(device)).make_group(options.group_id, ranks)


def _host_of(store: dist.Store) -> str:
    """The address of rank 0, this process, as other ranks can reach it."""
    if "MASTER_ADDR" in os.environ:
        return os.environ["MASTER_ADDR"]
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return store.host
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "127.0.0.1"
    return socket.gethostname()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def track(schedule) -> None:
    """Notes a schedule, which must end before the world."""
    _schedules.add(schedule)


@atexit.register
def close() -> None:
    """Ends all schedules, and the world. Other ranks need not do so at the same time."""
    global _world, _device, _default_group
    for schedule in list(_schedules):
        schedule.close()
    if _world is not None:
        _world.close()
    _world = _device = _default_group = None
