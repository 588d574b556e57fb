"""Seconds of collectives by size over the run's process group, with a check of the values; pairs; products.

All ranks do the same at the same time, so every choice here follows from the job and from what the ranks agreed on.
Bytes are those of the whole message: for a gather what comes out, for a scatter what goes in, as nccl-tests counts.
"""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Any

import peak
import torch
import torch.distributed as dist
from device import open_device, process_group
from levelfield.worker import Recorder
from levelfield.worker.job import Job
from repeats import blocks, slowest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    # What repeats a collective, and what was wrong with its values; None: nothing
    Operation = tuple[Callable[[], object], str | None]

FLOAT_BYTES = 4
MAX_REPEATS, REPEATED_BYTES = 20, 2**24
SIZES = {"cpu": [2**power for power in range(10, 27, 4)], "accelerator": [2**power for power in range(10, 31, 4)]}
SHORT_SIZES = {"cpu": [2**10, 2**20, 2**22], "accelerator": [2**10, 2**20, 2**26]}
MAX_MESSAGE_SECONDS = {True: 0.1, False: 0.5}  # of one message, short or not: larger ones are left out
MATMUL_SECONDS = {True: 0.5, False: 2.0}
BARRIERS = 20


def measure(job: Job, recorder: Recorder, options: argparse.Namespace) -> None:
    """Record products of this rank's device, then collectives of all ranks, then messages of pairs on request."""
    device = open_device(job)
    if job.world_size == 1:
        multiply(job, recorder, options.short)
        return
    kind = "cpu" if device.type == "cpu" else "accelerator"
    sizes = (SHORT_SIZES if options.short else SIZES)[kind]
    with process_group(job, device):
        recorder.measured("joined", {"backend": dist.get_backend(), "ranks": job.world_size})
        dist.barrier()  # every rank has loaded torch: that would slow the products down
        multiply(job, recorder, options.short)
        dist.barrier()
        recorder.measured("barrier", {"seconds": blocks(device, dist.barrier, BARRIERS)})
        for name, make in OPERATIONS.items():
            collective(recorder, device, name, make, sizes, MAX_MESSAGE_SECONDS[options.short])
        if options.pairs:
            pairs(job, recorder, device, sizes)


def multiply(job: Job, recorder: Recorder, short: bool) -> None:
    """Record the rate of matrix products. The host's processors are measured once for a node, as a whole."""
    on_host = job.device == "cpu"
    if on_host and job.local_rank:
        return
    name = job.training.precision if job.training.precision in peak.DTYPES else "bf16"
    before = torch.get_num_threads()
    if on_host:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    rate = peak.measure(job.device, peak.DTYPES[name], MATMUL_SECONDS[short])
    torch.set_num_threads(before)
    recorder.measured("matmul", {"precision": name, **rate})


def collective(
    recorder: Recorder,
    device: torch.device,
    name: str,
    make: Callable[[torch.Tensor], Operation],
    sizes: Sequence[int],
    max_seconds: float,
) -> None:
    """Record one operation at every size until a message takes longer than `max_seconds`.

    All ranks leave out the same sizes, which are in bytes.
    """
    for size in sizes:
        whole = message(size, device)
        work, wrong = make(whole)
        recorder.measured(
            "collective",
            {
                "operation": name,
                "bytes": whole.numel() * FLOAT_BYTES,
                "seconds": (seconds := blocks(device, work, repeats_of(size))),
                "wrong": wrong,
            },
        )
        if slowest(device, statistics.median(seconds)) > max_seconds:
            return


def message(size: int, device: torch.device) -> torch.Tensor:
    """Return numbers from 1 to 7 in turn, about `size` bytes: as many as all ranks can share equally."""
    ranks = dist.get_world_size()
    count = max(1, size // FLOAT_BYTES // ranks) * ranks
    return (torch.arange(count, device=device) % 7 + 1).float()


def repeats_of(size: int) -> int:
    return max(2, min(MAX_REPEATS, REPEATED_BYTES // size))


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Return where the first wrong value is and what it is; None when all are right. NaN is wrong."""
    if torch.equal(actual, expected):
        return None
    place = int((actual != expected).nonzero()[0])
    return f"element {place} of {actual.numel()}: found {actual[place].item():g}, expected {expected[place].item():g}"


def make_all_reduce(whole: torch.Tensor) -> Operation:
    """All-reduce of the numbers times rank + 1: sums of small whole numbers are exact."""
    values = whole * (dist.get_rank() + 1)
    dist.all_reduce(values)
    wrong = difference(values, whole * sum_of_factors())
    values.zero_()  # repeated sums would grow
    return lambda: dist.all_reduce(values), wrong


def make_all_gather(whole: torch.Tensor) -> Operation:
    """All-gather of a part from every rank, times rank + 1."""
    ranks, gathered = dist.get_world_size(), torch.empty_like(whole)
    part = whole[: whole.numel() // ranks].clone()
    mine = part * (dist.get_rank() + 1)
    dist.all_gather_into_tensor(gathered, mine)
    wrong = difference(gathered, torch.cat([part * (rank + 1) for rank in range(ranks)]))
    return lambda: dist.all_gather_into_tensor(gathered, mine), wrong


def make_reduce_scatter(whole: torch.Tensor) -> Operation:
    """Reduce-scatter of the numbers times rank + 1."""
    rank, size = dist.get_rank(), whole.numel() // dist.get_world_size()
    part, mine = torch.empty_like(whole[:size]), whole * (rank + 1)
    dist.reduce_scatter_tensor(part, mine)
    wrong = difference(part, whole[rank * size : (rank + 1) * size] * sum_of_factors())
    mine.zero_()
    return lambda: dist.reduce_scatter_tensor(part, mine), wrong


def make_broadcast(whole: torch.Tensor) -> Operation:
    """Broadcast from rank 0; the other ranks begin with zeros."""
    received = whole.clone() if dist.get_rank() == 0 else torch.zeros_like(whole)
    dist.broadcast(received, 0)
    return lambda: dist.broadcast(received, 0), difference(received, whole)


def sum_of_factors() -> int:
    ranks = dist.get_world_size()
    return ranks * (ranks + 1) // 2


OPERATIONS = {
    "all_reduce": make_all_reduce,
    "all_gather": make_all_gather,
    "reduce_scatter": make_reduce_scatter,
    "broadcast": make_broadcast,
}


def pairs(job: Job, recorder: Recorder, device: torch.device, sizes: Sequence[int]) -> None:
    """Record messages between every two nodes, by their first ranks; between every two devices of a single node.

    In each round every member has one partner, so that n members need n - 1 rounds.
    """
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    members = list(range(0, job.world_size, per_node))
    members = members if len(members) > 1 else list(range(job.world_size))
    for pairs_of_round in rounds(members):
        partner = next((a + b - job.rank for a, b in pairs_of_round if job.rank in (a, b)), None)
        for size in (sizes[0], sizes[-1]) if partner is not None else ():
            exchange(job, recorder, device, partner, size)  # type: ignore[arg-type]  # with a partner only
        dist.barrier()


def rounds(members: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield lists of pairs in which each member appears at most once; together every pair once (the circle method)."""
    seats: list[Any] = [*members, None] if len(members) % 2 else list(members)
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs_of_round = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [pair for pair in pairs_of_round if None not in pair]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def exchange(job: Job, recorder: Recorder, device: torch.device, partner: int, size: int) -> None:
    """Send a message of `size` bytes there and back.

    The lower rank records the seconds of one way, and whether its values came back.
    """
    first = job.rank < partner
    expected = (torch.arange(max(1, size // FLOAT_BYTES), device=device) % 7 + 1).float()
    values = expected.clone() if first else torch.zeros_like(expected)
    calls = (dist.send, dist.recv) if first else (dist.recv, dist.send)

    def send_and_return() -> None:
        for call in calls:
            call(values, partner)

    seconds = [there_and_back / 2 for there_and_back in blocks(device, send_and_return, repeats_of(size))]
    if first:
        ranks, wrong = [job.rank, partner], difference(values, expected)
        recorder.measured(
            "pair", {"ranks": ranks, "bytes": expected.numel() * FLOAT_BYTES, "seconds": seconds, "wrong": wrong}
        )
