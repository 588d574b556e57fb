"""How the ranks find rank 0, whose process answers OneFlow's requests for all of them, and how it outlives them."""

import os
import socket
import time

PATIENCE_SECONDS = 60.0
PERIOD_SECONDS = 0.05


def forget_proxies():
    """The ranks speak to each other as to web servers, and would look for each other behind the user's proxy."""
    for name in [name for name in os.environ if name.lower() in ("grpc_proxy", "http_proxy", "https_proxy")]:
        del os.environ[name]


def await_master(job):
    """Wait until rank 0 answers: a rank that asks too early is made to wait ten seconds by OneFlow."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    end = time.monotonic() + (PATIENCE_SECONDS if job.rank else 0.0)
    while time.monotonic() < end and not answers(address):
        time.sleep(PERIOD_SECONDS)


def answers(address):
    try:
        socket.create_connection(address, timeout=PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


def leave(job, barrier, total):
    """Return when no rank needs this one any more.

    A barrier is not enough: rank 0 serves it, and if it leaves at once the others' barriers fail for want of an
    answer. So it waits for a word from each. total: sums a number over all ranks.
    """
    if job.world_size == 1:
        return
    server = None if job.rank else socket.create_server(("", 0), backlog=job.world_size)
    port = int(total(0 if job.rank else server.getsockname()[1]))
    barrier()
    if job.rank:
        socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=PATIENCE_SECONDS).close()
        return
    server.settimeout(PATIENCE_SECONDS)
    for _ in range(job.world_size - 1):
        server.accept()[0].close()
