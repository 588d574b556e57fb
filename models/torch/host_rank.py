"""What one process of several reaches on this host while the others do the same: products, memory, messages.

host_rates.py starts it, once for each process; it prints one line of JSON. Each figure is the middle one of three
blocks of repeats, each block timed as a whole: where processes take turns on a core, one repeat's time says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], object]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLOAT_BYTES = 4
SIZES = (64, 128, 256, 512, 1024, 2048)
ARRAY_BYTES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**27)  # of each of three arrays: from a core's cache to beyond all
MESSAGE_BYTES = tuple(2**power for power in range(10, 25, 2))
MESSAGE_LIMIT = timedelta(seconds=60)
OPERATIONS = 1000
BLOCKS = 3


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.processes > 1:
        join(options)
    rates = {
        "matmul": {name: products(DTYPES[name], options.seconds) for name in options.dtype.split(",")},
        "triad": {size: triad(size, options.seconds) for size in ARRAY_BYTES},
        "copy": copy(ARRAY_BYTES[-1], options.seconds),
        "operation": operation(options.seconds),
        "collectives": collectives() if options.processes > 1 else {},
    }
    print(json.dumps(rates), flush=True)
    if options.processes > 1:
        dist.barrier()
        os._exit(0)  # gloo's threads abort some processes that end in the ordinary way


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--store", required=True, help="a file that is not there yet, by which the processes meet")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="how long to measure each size")
    return parser.parse_args()


def join(options: argparse.Namespace) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.processes,
        timeout=MESSAGE_LIMIT,
    )


def products(dtype: torch.dtype, seconds: float) -> dict[int, float]:
    """Return the FLOP/s of square products by their size."""
    rates = {}
    for size in SIZES:
        left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
        out = torch.empty(size, size, dtype=dtype)
        rates[size] = rate(2 * size**3, seconds, lambda: torch.mm(left, right, out=out))  # noqa: B023 (called at once)
    return rates


def triad(size_bytes: int, seconds: float) -> float:
    """Return the bytes/s of a = b + 2 c: two arrays are read and one is written, as in McCalpin's STREAM."""
    a, b, c = (torch.ones(size_bytes // FLOAT_BYTES) for _ in range(3))
    return rate(3 * size_bytes, seconds, lambda: torch.add(b, c, alpha=2, out=a))


def copy(size_bytes: int, seconds: float) -> float:
    """Return the bytes/s that a copy reads and writes."""
    a, b = (torch.ones(size_bytes // FLOAT_BYTES) for _ in range(2))
    return rate(2 * size_bytes, seconds, lambda: a.copy_(b))


def rate(amount: float, seconds: float, work: Work) -> float:
    """Return the amount per second in blocks of a fixed time, so that all processes are at the same size together."""
    meet()
    work()  # the first call sets up kernels and memory
    return statistics.median(amount / mean_seconds(work, seconds / BLOCKS) for _ in range(BLOCKS))


def mean_seconds(work: Work, seconds: float) -> float:
    """Return the mean time of the repeats that begin within `seconds`, at least one."""
    start, repeats, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < seconds or not repeats:
        work()
        repeats += 1
        elapsed = time.perf_counter() - start
    return elapsed / repeats


def meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def operation(seconds: float) -> float:
    """Return the seconds of a call of an operation that has next to nothing to do."""
    x, out = torch.ones(16), torch.ones(16)
    return 1 / rate(OPERATIONS, seconds, lambda: [torch.add(x, x, out=out) for _ in range(OPERATIONS)])


def collectives() -> dict[str, dict[int, float]]:
    """Return seconds by operation and bytes of the whole message: of a gather's output, of a scatter's input."""
    return {
        name: {size: message(make, size) / ways for size in MESSAGE_BYTES}
        for name, make, ways in (
            ("all_reduce", make_all_reduce, 1),
            ("all_gather", make_all_gather, 1),
            ("reduce_scatter", make_reduce_scatter, 1),
            ("send_recv", make_send_and_return, 2),
        )
    }


def message(make: Callable[[int], Work], size_bytes: int) -> float:
    """Return the seconds of one message. All processes must repeat it equally often."""
    work = make(size_bytes // FLOAT_BYTES)
    meet()
    work()
    repeats = max(3, min(20, 2**22 // size_bytes))
    return statistics.median(seconds_of(work, repeats) for _ in range(BLOCKS))


def seconds_of(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def make_all_reduce(count: int) -> Work:
    whole = torch.ones(count)
    return lambda: dist.all_reduce(whole)


def make_all_gather(count: int) -> Work:
    whole, part = torch.ones(count), torch.ones(count // dist.get_world_size())
    return lambda: dist.all_gather_into_tensor(whole, part)


def make_reduce_scatter(count: int) -> Work:
    whole, part = torch.ones(count), torch.ones(count // dist.get_world_size())
    return lambda: dist.reduce_scatter_tensor(part, whole)


def make_send_and_return(count: int) -> Work:
    """Return what sends a message from one neighbour to the other and back."""
    whole, rank = torch.ones(count), dist.get_rank()
    turns = (dist.send, dist.recv) if rank < rank ^ 1 else (dist.recv, dist.send)
    return lambda: [turn(whole, rank ^ 1) for turn in turns]


if __name__ == "__main__":
    main()
