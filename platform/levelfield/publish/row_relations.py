"""The relations that a published setting must satisfy: batches, devices, heads, layers, its printed layout.

The first five come from OneFlow's GPT report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from levelfield.specs.case import Work
from levelfield.specs.layout import Layout, LayoutText, parse_layout
from levelfield.specs.setting import Setting, Shape
from levelfield.worker.division import DIVIDED_OVER


@dataclass(frozen=True)
class Relation:
    """A relation of a setting. `found` and `expected`: the numbers of its two sides, as text."""

    name: str
    holds: bool
    found: str
    expected: str


def relations(s: Setting, work: Work | None = None) -> Iterator[Relation]:
    """Return every relation of the setting, true or false. With `work`, relations to its case are included."""
    layout = s.parallel
    product = s.micro_batch * layout.data * s.accumulation
    yield _equal(
        "global_batch", product, s.global_batch, f"{s.micro_batch} x data {layout.data} x {s.accumulation} = {product}"
    )
    yield _equal("devices", layout.world_size, s.devices, f"{layout.in_words} = {layout.world_size}")
    if shape := s.model or (_shape(work) if work else None):
        yield from _divisions(shape, layout)
    if work:
        yield from _case(s, work)
    if s.layout_printed:
        yield from _printed(s, parse_layout(s.layout_printed))


def _divisions(model: Shape, layout: Layout) -> Iterator[Relation]:
    yield _divides("hidden_size over heads", model.hidden_size, model.heads)
    for name, over in DIVIDED_OVER.items():
        if name in Shape.model_fields:
            yield _divides(f"{name} over {over}", getattr(model, name), getattr(layout, over))


def _case(s: Setting, work: Work) -> Iterator[Relation]:
    """Compare the setting with the case that it names as the same work."""
    training, shape = work.training, _shape(work)
    pairs: dict[str, tuple[object, object]] = {
        "global_batch": (s.global_batch, training.global_batch),
        "sequence_length": (s.sequence_length, training.sequence_length),
        "precision": (s.precision, training.precision),
        **{name: (getattr(s.model or shape, name), getattr(shape, name)) for name in Shape.model_fields},
    }
    for name, (said, is_) in pairs.items():
        yield Relation(f"{name} of {s.case}", said == is_, f"{said}", f"{is_}")


def _shape(work: Work) -> Shape:
    return Shape(layers=work.model.layers, hidden_size=work.model.hidden_size, heads=work.model.heads)


def _printed(s: Setting, said: LayoutText) -> Iterator[Relation]:
    """Compare the printed layout, which may be incomplete, with the layout that ran."""
    ran = s.parallel
    pairs: dict[str, tuple[int | None, int]] = {
        "data": (said.layout.data, ran.data),
        "tensor": (said.layout.tensor, ran.tensor),
        "pipeline": (said.layout.pipeline, ran.pipeline),
        "sharding_stage": (said.layout.sharding_stage or None, ran.sharding_stage),
        "nodes": (said.nodes, s.nodes),
        "devices_per_node": (said.devices, s.devices_per_node),
        "micro_batch": (said.micro_batch, s.micro_batch),
    }
    for part, (printed, setting) in pairs.items():
        if printed is not None:
            yield _equal(f"layout_printed, {part}", printed, setting, f"{s.layout_printed} says {printed}")


def _equal(name: str, found: int, expected: int, text: str) -> Relation:
    return Relation(name, found == expected, text, f"{expected}")


def _divides(name: str, whole: int, by: int) -> Relation:
    return Relation(name, whole % by == 0, f"{whole} / {by}", "a whole number")
