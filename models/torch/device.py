"""The device of this rank and its process group; what the framework says of itself and of its memory."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from levelfield.worker.device_identity import identity_digest
from levelfield.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

KIBIBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_INT = -1, -3, 2**31 - 1  # of glibc's mallopt


def open_device(job: Job) -> torch.device:
    """Return the torch device of this rank, made current."""
    if job.device == "cpu":
        keep_freed_memory()
        return torch.device("cpu")
    device = torch.device(job.device, job.local_rank)
    torch.get_device_module(job.device).set_device(device)
    return device


def keep_freed_memory() -> None:
    """Have glibc keep what tensors free: each step needs the same memory again, and new pages cost more than products
    of small matrices. Without glibc nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_INT)
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)


@contextlib.contextmanager
def process_group(job: Job, device: torch.device, alone: bool = False) -> Iterator[None]:
    """Open the default group, by the rank's environment, while the context lasts; for a single process if `alone`."""
    if job.world_size == 1 and not alone:
        yield
        return
    group_device = None if job.device == "cpu" else device
    dist.init_process_group(job.backend, "env://", rank=job.rank, world_size=job.world_size, device_id=group_device)
    yield
    # Not after an error: the others may never arrive.
    if dist.get_backend() == "gloo":
        # Destroying a gloo group that DDP used hung in 8 of 135 runs on busy cores; ending the process closes it too.
        dist.barrier()
    else:
        dist.destroy_process_group()


def memory(device: torch.device) -> dict[str, int | None]:
    """Return the peaks in bytes since the start: the framework's counters, which the cpu lacks, and the process's."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    if device.type == "cpu":
        return {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": process}
    # nested, as the device keeps them: flattening all of them takes as long as a layer's launches
    statistics = torch.get_device_module(device).memory_stats_as_nested_dict(device)
    return {
        "allocated_peak_bytes": statistics["allocated_bytes"]["all"]["peak"],
        "reserved_peak_bytes": statistics["reserved_bytes"]["all"]["peak"],
        "process_peak_bytes": process,
    }


def describe(device: torch.device) -> tuple[str, dict[str, Any]]:
    """Return the device's name, and details of the build."""
    name = "cpu" if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    details: dict[str, Any] = {
        "device_identities": [] if device.type == "cpu" else _identities(device),
        "build": " ".join(torch.__config__.show().split()),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    return name, details


def _identities(device: torch.device) -> list[str]:
    """Return the digests of what a maker's tool may print as the device's identity: its UUID or its PCI address."""
    read = getattr(torch.get_device_module(device), "get_device_properties", None)
    properties = read(device) if read else None
    uuid = getattr(properties, "uuid", None)
    texts = [] if uuid is None else [f"GPU-{uuid}", str(uuid)]
    address = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None not in address:
        domain, bus, number = address
        lower = [f"{domain:0{width}x}:{bus:02x}:{number:02x}.0" for width in (4, 8)]
        texts += [*lower, *map(str.upper, lower)]
    return [identity_digest("device", text) for text in dict.fromkeys(texts)]
