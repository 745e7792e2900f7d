"""The world of this process: made from torch.distributed's, by way of its store."""

from __future__ import annotations

import atexit
import os
import socket
import weakref

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _native

_world = None  # for as long as torch.distributed has the process group that it was made for
_default_group = None  # a weak reference to that group, once it exists
_schedules = weakref.WeakSet()


def world(timeout: float | None = None) -> _native.World:
    """Returns the world of torch.distributed's default group. The first call is collective over all of its ranks.

    `timeout` is in seconds, that of connecting and of operations without their own; by default ten minutes.
    """
    global _world, _default_group
    if not dist.is_initialized():
        raise ValueError("torch.distributed has no default process group; call torch.distributed.init_process_group() first")
    group = dist.group.WORLD
    if _world is not None and _default_group is None:  # register_backend() has made it for this group
        _default_group = weakref.ref(group)
    if _world is None or _default_group() is not group:
        close()
        _world = make(c10d._get_default_store(), dist.get_rank(), dist.get_world_size(), timeout or 600.0)
        _default_group = weakref.ref(group)
    return _world


def make(store: dist.Store, rank: int, size: int, timeout: float) -> _native.World:
    """Connects this rank to a store of our own, which rank 0 hosts and announces in `store`."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    key = f"pipewright/world/{restarts}"
    if rank > 0:
        host, port = store.get(key).decode().rsplit(":", 1)
        return _native.World(rank, size, host, int(port), restarts, timeout)
    host = _host_of(store)
    for attempt in range(8):
        port = _free_port() if size > 1 else 0
        try:
            made = _native.World(rank, size, host, port, restarts, timeout)
        except RuntimeError as error:  # another process has taken the port meanwhile
            if "EADDRINUSE" not in str(error) or attempt == 7:
                raise
        else:
            store.set(key, f"{host}:{port}")
            return made


def register_backend() -> None:
    """Registers the backend `pipewright`: init_process_group("pipewright") makes every group one of our world.

    It communicates over Gloo, so its tensors are on the CPU. A failure on any rank ends the collectives of all of its groups
    with the first cause, also those of FSDP2, DDP and DTensor.
    """
    dist.Backend.register_backend("pipewright", _make_group, extended_api=True, devices=["cpu"])


def _make_group(options, _):
    global _world, _default_group
    if not dist.is_initialized():  # it is the default group itself
        close()
        _world = make(options.store, options.group_rank, options.group_size, options.timeout.total_seconds())
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return (_world if _default_group is None else world()).make_group(options.group_id, ranks)


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
    global _world, _default_group
    for schedule in list(_schedules):
        schedule.close()
    if _world is not None:
        _world.close()
    _world = _default_group = None
