"""What other programs use of a device. See docs/decisions/other-use.md.

A device is in use by others when more than a tenth of its memory or of its time is used before the training starts.
"""

from __future__ import annotations

# An idle device of the shipped recordings holds up to 5.3 % of its memory (Ascend's driver) and shows a load of 7 %.
MEMORY_LIMIT = 0.10
LOAD_LIMIT = 0.10
_GIB = 2**30


def is_used_by_others(used_bytes: int | None, memory_bytes: int | None, load: float | None) -> bool | None:
    """Return whether others use a device before the run starts; None where neither its memory nor its load is known."""
    memory_share = used_bytes / memory_bytes if used_bytes is not None and memory_bytes else None
    shares = [
        (value, limit) for value, limit in ((memory_share, MEMORY_LIMIT), (load, LOAD_LIMIT)) if value is not None
    ]
    return any(not value <= limit for value, limit in shares) if shares else None


def describe_device_use(
    device: str, used_bytes: int | None, memory_bytes: int | None, load: float | None, when: str
) -> str:
    """Return a sentence that says what others use of a device, with the limits."""
    memory = "unknown memory" if used_bytes is None else f"{used_bytes / _GIB:.1f} GiB"
    total = f" of {memory_bytes / _GIB:.1f} GiB" if memory_bytes and used_bytes is not None else ""
    load_text = "unknown load" if load is None else f"load {load:.0%}"
    limits = f"{MEMORY_LIMIT:.0%} of memory, {LOAD_LIMIT:.0%} load"
    return f"others use device {device}: {memory}{total}, {load_text} {when} (limits: {limits})"
