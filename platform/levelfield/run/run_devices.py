"""The devices of a run on this machine: locked against all users of the machine, and sampled once a second."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import psutil

from levelfield.catalog.machine import devices_of
from levelfield.contracts.execution import Outcome
from levelfield.contracts.readings import plausible_samples
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import RunFailed
from levelfield.node.device_files import DeviceLocks, lock_device, lock_folder
from levelfield.node.node_facts import host_counters
from levelfield.node.process_identity import end_leftover_ranks, live_rank_processes
from levelfield.node.regular_files import read_regular
from levelfield.node.sampling import Reading, Sampler
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

SAMPLE_INTERVAL_SECONDS = 1.0


@contextmanager
def lock_devices(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Iterator[DeviceLocks]:
    """Lock the plan's devices until the block ends. A host that is divided into shares has none to lock, and where a
    launcher reaches other nodes, each node locks its own.

    Processes that a killed platform left are ended first: they may use a device, or memory and cores of the host.
    Raises DeviceInUse, or RunFailed where a lock cannot be made.
    """
    if plan.launch:
        yield DeviceLocks(())
        return
    for sentence in end_leftover_ranks():
        say(sentence)
    with ExitStack() as stack:
        devices = [f"{plan.hardware.vendor}-{index}" for index in plan.hardware.device_indices]
        yield DeviceLocks([stack.enter_context(_lock_device(device, plan.run_id)) for device in devices])


@contextmanager
def _lock_device(device: str, run_id: str) -> Iterator[FileIO]:
    with ExitStack() as stack:
        try:
            file = stack.enter_context(lock_device(lock_folder(), device, run_id))
        except OSError as error:
            raise RunFailed(
                f"device {device} cannot be locked: {error.filename}: {error.strerror}; set LEVELFIELD_LOCKS to a "
                "folder that all users of the machine can write"
            ) from None
        yield file


def sample_devices(
    plan: Plan, vendor: Vendor, paths: RunPaths
) -> AbstractContextManager[WatchedSampler] | AbstractContextManager[None]:
    """Return a context that samples the plan's devices, or the host where it is divided into shares.

    Each node of a launcher samples its own devices.

    A device that the tool no longer shows is sampled as well: its samples then hold the reasons.
    """
    if plan.launch:
        return nullcontext()
    devices_by_index, hardware = {device.index: device for device in devices_of(vendor)}, plan.hardware
    missing_device_fields = (hardware.chip.name, hardware.description, hardware.memory_bytes_per_device)
    devices = [
        devices_by_index.get(index) or Device(index, *missing_device_fields) for index in hardware.device_indices
    ]
    devices = devices or list(devices_by_index.values())
    return device_sampler(vendor, devices, paths.telemetry, ranks_are_children=plan.runtime != "docker")


def device_sampler(
    vendor: Vendor, devices: Sequence[Device], path: Path, ranks_are_children: bool = True
) -> WatchedSampler:
    """Return a context that samples devices. A tool that is slow, missing or failing leaves a reason in the file.

    The block begins after the first reading. A tool that still runs at the end is ended.
    ranks_are_children: whether the training's processes are descendants of this one.
    """
    return WatchedSampler(
        path,
        SAMPLE_INTERVAL_SECONDS,
        read_tools=lambda: plausible_samples(vendor, devices) if devices else {"samples": []},
        empty_reading={"samples": []},
        read_host=lambda is_before_training: _read_host_counters(ranks_are_children, is_before_training),
    )


class WatchedSampler(Sampler):
    """A sampler that notices what else writes to its file: a training could, as its user is the platform's."""

    def __init__(self, path: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self._file, self._digests = path, list[bytes]()

    def __enter__(self) -> WatchedSampler:
        super().__enter__()
        return self

    def _sample_line(self, read_tools: Callable[[], Reading]) -> dict[str, object]:
        line = super()._sample_line(read_tools)
        self._digests.append(_line_digest(json.dumps(line).encode()))
        return line

    def revise_outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the run, which failed where its file holds other lines than were sampled."""
        lines = read_regular(self._file, "telemetry").split(b"\n") if self._file.exists() else []
        digests = [_line_digest(line) for line in lines[:-1]]
        # a slow tool may leave the last line out, and a full disk any after the first ones
        if digests == self._digests[: len(digests)] and digests and lines[-1] == b"":
            return outcome
        evidence = f"{self._file.name}: found other lines than were sampled. Let nothing else write there"
        if outcome.cause == "exited":
            return replace(outcome, cause="inputs-changed", evidence=evidence)
        return replace(outcome, warnings=(*outcome.warnings, evidence))


def _line_digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=8).digest()


def _read_host_counters(ranks_are_children: bool, is_before_training: bool) -> dict[str, Any] | None:
    """Return the host's counters, with the memory of the largest rank that this process has started."""
    counters = host_counters(ranks_are_children or is_before_training)
    if counters is None or is_before_training or not ranks_are_children:
        return counters
    return {**counters, "rank_bytes": _largest_rank_bytes()}


def _largest_rank_bytes() -> int | None:
    """Return the resident memory of the largest rank; None without one. Children of a rank are not counted."""
    rank_pids, sizes = {*live_rank_processes()}, list[int]()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.pid in rank_pids:
                sizes.append(child.memory_info().rss)
    return max(sizes, default=None)
