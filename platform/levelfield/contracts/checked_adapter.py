"""An adapter of an adapter.py, whose code is anybody's: its answers have the types of the contract, or are an error.

An adapter may raise anything, and whoever calls it expects that. What no caller expects is an end of the whole process,
or an answer that fails much later in the platform's own code, or none at all.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from levelfield.contracts.command import Ask, assign_tools_to, end_tools
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import ContainerOptions, Device, DeviceList, NodeCommands, Sample, Vendor
from levelfield.errors import DocumentError
from levelfield.specs.base import MAX_DEVICES

ANSWER_LIMIT_SECONDS = 120.0  # of one answer: the tools of eight devices without a resident driver take twenty
# By field of Device: the types that it may have, and the same in words.
_DEVICE_FIELDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "index": ((int,), "a whole number from 0"),
    "chip": ((str, type(None)), "a text or None"),
    "description": ((str,), "a text"),
    "memory_bytes": ((int, type(None)), "a whole number or None"),
    "identity": ((str, type(None)), "a text or None"),
    "visible_as": ((str, type(None)), "a text or None"),
    "unnumbered_reason": ((str, type(None)), "a text or None"),
    "compute_units": ((int, type(None)), "a whole number or None"),
}


class AdapterFault(DocumentError):
    """An adapter gave no answer of the contract. Names its file, the method, and what was found and expected."""


class CheckedAdapter:
    """The adapter of a file. Raises AdapterFault where it ends the process, returns what the contract does not have or
    gives no answer in ANSWER_LIMIT_SECONDS.

    What else the adapter raises is passed on, but for `container`, whose options are asked for while planning.
    """

    def __init__(self, adapter: Vendor, path: Path) -> None:
        self.adapter, self.path = adapter, path
        self.spec = adapter.spec

    def devices(self) -> Sequence[Device]:
        answer = self._bounded_call("devices", self.adapter.devices)
        if isinstance(answer, (str, Mapping)) or not isinstance(answer, Iterable):
            raise self._fault("devices", answer, "a list of Device")
        devices = self._bounded_call("devices", lambda: list(islice(answer, MAX_DEVICES + 1)))
        if fault := devices_fault(devices):
            raise AdapterFault(f"{self.path}: devices(): {fault}")
        return DeviceList(devices, answer.problem if isinstance(answer, DeviceList) else None)

    def container(self, devices: Sequence[Device]) -> ContainerOptions:
        try:
            options = self._bounded_call("container", lambda: self.adapter.container(devices))
        except DocumentError:
            raise
        except Exception as error:  # an adapter may raise anything: name its file
            raise AdapterFault(f"{self.path}: container() raised {type(error).__name__}: {error}") from None
        if not isinstance(options, ContainerOptions):
            raise self._fault("container", options, "ContainerOptions")
        return options

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        samples = self._bounded_call("sample", lambda: self.adapter.sample(devices))
        if not isinstance(samples, (list, tuple)) or not all(isinstance(sample, Sample) for sample in samples):
            raise self._fault("sample", samples, "a list of Sample")
        if fault := next(filter(None, map(sample_fault, samples)), None):
            raise AdapterFault(f"{self.path}: sample(): {fault}")
        return samples

    def software(self) -> dict[str, str]:
        versions = self._bounded_call("software", self.adapter.software)
        if not isinstance(versions, dict) or not all(
            isinstance(text, str) for pair in versions.items() for text in pair
        ):
            raise self._fault("software", versions, "texts by their names")
        return versions

    def _bounded_call(self, method: str, call: Callable[[], Any]) -> Any:
        """Return or raise what `call` does. After the limit, its thread ends with the process.

        To end the process is not for an adapter; Ctrl-C is the user's.
        """
        calling_thread = threading.get_ident()
        results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def put_result() -> None:
            assign_tools_to(calling_thread)
            try:
                results.put((call(), None))
            except BaseException as error:  # SystemExit too: it is looked at where the answer is awaited
                results.put((None, error))

        threading.Thread(target=put_result, daemon=True, name="adapter").start()
        try:
            result, error = results.get(timeout=ANSWER_LIMIT_SECONDS)
        except queue.Empty:
            end_tools(calling_thread)
            raise AdapterFault(f"{self.path}: {method}() gave no answer within {ANSWER_LIMIT_SECONDS:g} s") from None
        if isinstance(error, SystemExit):
            raise AdapterFault(f"{self.path}: {method}() called sys.exit({error.code!r}), expected an answer")
        if error is not None:
            raise error
        return result

    def _fault(self, method: str, answer: object, expected: str) -> AdapterFault:
        return AdapterFault(f"{self.path}: {method}() returned {answer!r:.80}, expected {expected}")


class CheckedReplayableAdapter(CheckedAdapter):
    """The same for an adapter that can read what its tools printed on another node."""

    def node_commands(self) -> NodeCommands:
        commands = self._bounded_call("node_commands", self.adapter.node_commands)  # type: ignore[attr-defined]
        if not isinstance(commands, NodeCommands):
            raise self._fault("node_commands", commands, "NodeCommands")
        return commands

    def replayed(self, ask: Ask) -> Vendor | None:
        adapter = self._bounded_call("replayed", lambda: self.adapter.replayed(ask))  # type: ignore[attr-defined]
        return None if adapter is None else checked_adapter(adapter, self.path)


def checked_adapter(adapter: Vendor, path: Path) -> Vendor:
    """Return the adapter of a file with its answers checked."""
    can_replay = hasattr(adapter, "node_commands") and hasattr(adapter, "replayed")
    return (CheckedReplayableAdapter if can_replay else CheckedAdapter)(adapter, path)


def sample_fault(sample: Sample) -> str | None:
    """Return why a sample breaks the contract; None where it does not."""
    if type(sample.index) is not int:
        return f"key 'index': found {sample.index!r:.80}, expected a whole number"
    for name in SAMPLED_FIELDS:
        value = getattr(sample, name)
        if value is not None and (type(value) is bool or not isinstance(value, (int, float)) or not isfinite(value)):
            return f"key '{name}': found {value!r:.80}, expected a finite number or None"
    reasons = sample.reasons
    if not isinstance(reasons, dict) or not all(isinstance(text, str) for pair in reasons.items() for text in pair):
        return f"key 'reasons': found {reasons!r:.80}, expected texts by the names of fields"
    return None


def devices_fault(devices: Sequence[object]) -> str | None:
    """Return why these are not the devices of one machine; None where they are."""
    if len(devices) > MAX_DEVICES:
        return f"found more than {MAX_DEVICES:,} devices, expected those of one machine"
    seen: set[int] = set()
    for device in devices:
        if not isinstance(device, Device):
            return f"found {device!r:.80}, expected a Device"
        for name, (types, expected) in _DEVICE_FIELDS.items():
            value = getattr(device, name)
            if type(value) not in types or (type(value) is int and value < 0):
                return f"key '{name}': found {value!r:.80}, expected {expected}"
        if device.index in seen:
            return f"key 'index': found {device.index} twice, expected a number of its own for each device"
        seen.add(device.index)
    return None
