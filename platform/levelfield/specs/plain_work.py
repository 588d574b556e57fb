"""What a case says although it changes nothing: values that equal their defaults, or that never bind.

Equal work has equal digests, and a framework without a part is not refused for a part that does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levelfield.specs.base import Value

if TYPE_CHECKING:
    from levelfield.specs.architecture import Experts, RopeScaling
    from levelfield.specs.case import Work


def idle_values(work: Work) -> tuple[str, ...]:
    """Return the fields of the model that could be left out: the work is the same without them."""
    model, length = work.model, work.training.sequence_length
    is_idle = {
        "head_dim": model.head_dim is not None and model.head_dim * model.heads == model.hidden_size,
        "embedding_scale": model.embedding_scale == 1,
        "sliding_window": model.sliding_window is not None and model.sliding_window >= length,
        "rope_scaling": model.rope_scaling is not None and _keeps_frequencies(model.rope_scaling),
        "experts.capacity_factor": model.experts is not None and _takes_all(model.experts),
        "experts.router.groups": model.experts is not None and _chooses_all_groups(model.experts),
    }
    return tuple(name for name, idle in is_idle.items() if idle)


def value_at(work: Work, field: str) -> Any:
    """Return a value of the model by its field, such as `experts.router.groups`; None where a part is not there."""
    value: Any = work.model
    for name in field.split("."):
        value = getattr(value, name, None)
    return value


def without(work: Work, fields: Sequence[str]) -> Work:
    """Return the work without these values of the model."""
    return work.model_copy(update={"model": _unset(work.model, fields)})


def _unset(value: Value, fields: Sequence[str]) -> Value:
    changed: dict[str, Any] = {name: None for name in fields if "." not in name}
    for part in dict.fromkeys(name.split(".")[0] for name in fields if "." in name):
        if (inner := getattr(value, part)) is not None:
            changed[part] = _unset(inner, [name.partition(".")[2] for name in fields if name.startswith(f"{part}.")])
    return value.model_copy(update=changed)


def left_out(content: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a document without these fields."""
    kept = {name: value for name, value in content.items() if name not in fields}
    inner = {part: [name.partition(".")[2] for name in fields if name.startswith(f"{part}.")] for part in kept}
    return {name: left_out(value, inner[name]) if isinstance(value, dict) else value for name, value in kept.items()}


def _keeps_frequencies(scaling: RopeScaling) -> bool:
    return scaling.factor == 1 and scaling.magnitude in (None, 1)


def _takes_all(experts: Experts) -> bool:
    """Return whether an expert takes every token of a sequence that chooses it: none has more than all tokens."""
    return experts.capacity_factor is not None and experts.capacity_factor * experts.chosen >= experts.count


def _chooses_all_groups(experts: Experts) -> bool:
    groups = experts.router.groups
    return groups is not None and groups.chosen == groups.count
