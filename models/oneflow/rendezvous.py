"""How the ranks find rank 0, whose process answers OneFlow's requests for all of them, and how it outlives them."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from levelfield.worker.job import Job

PATIENCE_SECONDS = 60.0
PERIOD_SECONDS = 0.05


def forget_proxies() -> None:
    """Remove the user's proxies: the ranks speak to each other as to web servers, and would do so through a proxy."""
    for name in [name for name in os.environ if name.lower() in ("grpc_proxy", "http_proxy", "https_proxy")]:
        del os.environ[name]


def await_master(job: Job) -> None:
    """Wait until rank 0 answers: a rank that asks too early is made to wait ten seconds by OneFlow."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    deadline = time.monotonic() + (PATIENCE_SECONDS if job.rank else 0.0)
    while time.monotonic() < deadline and not is_answering(address):
        time.sleep(PERIOD_SECONDS)


def is_answering(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


def wait_for_all_ranks(job: Job, barrier: Callable[[], None], total: Callable[[float], float]) -> None:
    """Return when no rank needs this one any more.

    A barrier is not enough: rank 0 serves it, and if it leaves at once the others' barriers fail for want of an
    answer. So it waits for a word from each. total: sums a number over all ranks.
    """
    if job.world_size == 1:
        return
    if job.rank:
        port = int(total(0))
        barrier()
        socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=PATIENCE_SECONDS).close()
        return
    server = socket.create_server(("", 0), backlog=job.world_size)
    total(server.getsockname()[1])
    barrier()
    server.settimeout(PATIENCE_SECONDS)
    for _ in range(job.world_size - 1):
        server.accept()[0].close()
