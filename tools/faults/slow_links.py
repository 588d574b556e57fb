"""Two hosts of one machine, each with a network of its own. Traffic control of the kernel slows their link at times.

It limits the rate by a token bucket (`tc ... tbf`). `netem`, which delays packets, is missing in many kernels.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.planted_steps import Interval

RATE = "8mbit"  # a megabyte a second: the exchange of the small model takes more than 0.1 s
ADDRESSES = ("10.79.0.1", "10.79.0.2")
PLANT = "slow links"
NAME = "lfslow"  # of a host, before the number of the process and its own
# Each rank enters its host and slows what it sends. An exchange has a clock of its own.
_CODE = """
import ctypes, subprocess
import torch.distributed as dist
hosts = {hosts!r}
with open(f"/run/netns/{{hosts[job.rank]}}") as network:
    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")
os.environ.update(MASTER_ADDR={address!r}, GLOO_SOCKET_IFNAME="eth0", NODE_RANK=str(job.rank))
def shape(name):
    limit = "replace dev eth0 root tbf rate {rate} burst 16kb latency 10s" if name else "del dev eth0 root"
    if bool(name) != shape.is_on:
        subprocess.run(["tc", "qdisc", *limit.split()], check=True)
    shape.is_on = bool(name)
shape.is_on = False
afterwards.append(shape)
all_reduce = dist.all_reduce
def clocked(*arguments, **named):
    with clock({plant!r}):
        return all_reduce(*arguments, **named)
def exchange(_, bucket):
    begin = time.monotonic_ns()
    def end(future):
        note({plant!r}, begin, time.monotonic_ns())
        return future.value()[0]
    return all_reduce(bucket.buffer().div_(job.world_size), async_op=True).get_future().then(end)
dist.all_reduce = clocked
plants.append(lambda trainer: trainer.runner.register_comm_hook(None, exchange))
"""


def missing() -> str | None:
    """Return why there are no such hosts here; None where there are."""
    if os.geteuid() != 0:
        return "found no root, expected it: networks of their own need it"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"found no {' and no '.join(tools)}, expected iproute2" if tools else None


@contextlib.contextmanager
def two_hosts() -> Iterator[str]:
    """While the context lasts, two hosts are joined by a link; the code for a rank of each. Needs root and iproute2."""
    for left in Path("/run/netns").glob(f"{NAME}*-?"):  # by a process that was killed
        if not Path("/proc", left.name.removeprefix(NAME)[:-2]).exists():
            run("netns", "delete", left.name)
    hosts = [f"{NAME}{os.getpid()}-{number}" for number in (1, 2)]
    try:
        for host in hosts:
            run("netns", "add", host)
        end = {"name": "eth0", "netns": hosts[1]}
        run(
            "-n",
            hosts[0],
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            *(word for item in end.items() for word in item),
        )
        for host, address in zip(hosts, ADDRESSES, strict=True):
            run("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            run("-n", host, "link", "set", "eth0", "up")
            run("-n", host, "link", "set", "lo", "up")
        yield _CODE.format(hosts=hosts, address=ADDRESSES[0], rate=RATE, plant=PLANT)
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def run(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def transfer_ms(intervals: Sequence[Sequence[Interval]], steps: int) -> float:
    """Return what the exchanges of a step took once both ranks had come, the mean over the ranks.

    intervals: by rank, those of the exchanges in some steps, whose clocks are one machine's.
    """
    exchanges = [sorted(interval for interval in rank if interval.name == PLANT) for rank in intervals]
    pairs = zip(*exchanges, strict=True)
    spans = [interval.end - max(other.begin for other in pair) for pair in pairs for interval in pair]
    return sum(spans) / 1e6 / len(intervals) / steps
