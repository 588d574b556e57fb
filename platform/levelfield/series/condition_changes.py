"""What changed between two conditions, in words: `driver 550 -> 560`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from levelfield.specs.record import Conditions


def condition_changes(before: Conditions | None, after: Conditions | None) -> tuple[str, ...]:
    """Return each field that differs with its old and its new value; empty where one side is not known."""
    if before is None or after is None:
        return ()
    old, new = dict(_flat(before)), dict(_flat(after))
    names = dict.fromkeys((*old, *new))
    return tuple(
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names if old.get(name) != new.get(name)
    )


def _flat(conditions: Conditions) -> Iterator[tuple[str, str]]:
    for name, value in conditions.model_dump().items():
        if isinstance(value, Mapping):
            yield from ((str(key), str(each)) for key, each in value.items())
        else:
            yield name, str(value)
