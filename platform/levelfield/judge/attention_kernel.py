"""Which kernel computed attention, by what the ranks reported."""

from __future__ import annotations

from collections.abc import Mapping

from levelfield.rundir.event_lines import Event
from levelfield.specs.result import KERNELS, AttentionKernelFound


def attention_kernel(frameworks: Mapping[int, Event]) -> AttentionKernelFound | None:
    """Return the kernel that all ranks name, or why it is not known; None where no rank reported one.

    frameworks: each rank's event of that name.
    """
    said = {rank: _said(event) for rank, event in sorted(frameworks.items())}
    names = list(dict.fromkeys(map(_shown, said.values())))
    if all(name is None for name in said.values()):
        return None
    if len(names) > 1:
        first = {_shown(name): rank for rank, name in reversed(said.items())}
        told = ", ".join(f"{name} by rank {first[name]}" for name in names)
        return _unknown(f"the ranks reported different kernels: {told}")
    name = said[min(said)]
    known = next((kernel for kernel in KERNELS if kernel == name), None)
    if known is None:
        return _unknown(f"the training reported {names[0]}, expected one of {', '.join(KERNELS)}")
    return AttentionKernelFound(name=known)


def _said(event: Event) -> object:
    details = event.get("details")
    return details.get("attention_kernel") if isinstance(details, dict) else None


def _shown(name: object) -> str:
    return "none" if name is None else repr(name)[:40]


def _unknown(reason: str) -> AttentionKernelFound:
    return AttentionKernelFound(name=None, reason=reason)
