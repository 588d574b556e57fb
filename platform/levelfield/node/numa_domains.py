"""Which cores each rank gets, and how many threads: those of the NUMA domain of its device.

A rank whose threads run in another domain than its device sends every buffer over the link between the processors.
Source: Linux, Documentation/ABI/stable/sysfs-devices-node and testing/sysfs-bus-pci.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Sequence

from levelfield.node.control_groups import HOST_ROOT, core_quota, file_text

ACCELERATOR_CLASSES = ("0x03", "0x12")  # the classes of display controllers and of processing accelerators
Fields = Dict[str, Any]


class RankCores(NamedTuple):
    """The cores of each rank."""

    cores: dict[int, list[int]]  # by rank
    domains: dict[int, int]  # the NUMA domains by rank; empty where ranks are not bound
    reason: str | None = None  # why ranks are not bound, where they should be

    def thread_count(self, rank: int) -> int:
        """Return the rank's share of the cores that it has with others, and of the groups' quota; at least one."""
        sharing_ranks = sum(cores == self.cores[rank] for cores in self.cores.values())
        quota, share = core_quota(), len(self.cores[rank]) // sharing_ranks
        return max(1, share if quota is None else min(share, math.ceil(quota) // len(self.cores)))

    def facts(self) -> Fields:
        """Return what a node's facts say: the domain, the number of cores and the threads of each rank."""
        ranks = {
            str(rank): {"domain": self.domains.get(rank), "cores": len(cores), "threads": self.thread_count(rank)}
            for rank, cores in self.cores.items()
        }
        return {"ranks": ranks, "reason": self.reason}

    @contextlib.contextmanager
    def bind(self, rank: int) -> Iterator[None]:
        """Bind the processes that this thread starts in the block to the rank's cores."""
        if rank not in self.domains:
            yield
            return
        previous_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores[rank])
        try:
            yield
        finally:
            os.sched_setaffinity(0, previous_cores)


def rank_cores(ranks: Sequence[int], binding: Mapping[str, Any], root: Path = HOST_ROOT) -> RankCores:
    """Return the cores of this node's ranks, the first of which has the first device.

    binding: the `pci_vendor` of the devices; empty: no rank is bound. Nothing is bound by a guess: the
    devices that the kernel shows must be as many as the ranks, and each in a known domain with usable cores.
    """
    usable = sorted(os.sched_getaffinity(0))
    all_cores = {rank: usable for rank in ranks}
    if not binding:
        return RankCores(all_cores, {})
    folders = sorted(root.glob("sys/devices/system/node/node[0-9]*"))
    cores = {int(folder.name[4:]): _parse_number_list(file_text(folder / "cpulist")) & {*usable} for folder in folders}
    domains = {number: sorted(numbers) for number, numbers in cores.items() if numbers}
    if len(domains) < 2:
        return RankCores(all_cores, {})  # there is nothing to choose
    if not binding.get("pci_vendor"):
        return RankCores(all_cores, {}, "the vendor's pci_vendor is not known")
    # the domains of the vendor's accelerators, in the order of their PCI addresses, by which drivers number them
    folders = sorted(root.glob("sys/bus/pci/devices/*"))
    folders = [folder for folder in folders if file_text(folder / "vendor") == str(binding["pci_vendor"])]
    folders = [folder for folder in folders if file_text(folder / "class").startswith(ACCELERATOR_CLASSES)]
    device_domains = [int(file_text(folder / "numa_node") or -1) for folder in folders]
    if len(device_domains) != len(ranks):
        return RankCores(all_cores, {}, f"the kernel shows {len(device_domains)} devices for {len(ranks)} ranks")
    if unusable := sorted({domain for domain in device_domains if domain not in domains}):
        return RankCores(all_cores, {}, f"a device is in domain {unusable[0]}, which has no usable core")
    return RankCores({r: domains[d] for r, d in zip(ranks, device_domains)}, dict(zip(ranks, device_domains)))


def _parse_number_list(text: str) -> set[int]:
    """Return the numbers of a kernel's list such as 0-3,8."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= {*range(int(first), int(last or first) + 1)}
    return numbers
