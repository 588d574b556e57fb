"""The setting of a published figure: model, layout, batches, chip and network, as far as the report gives them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from levelfield.errors import LayoutError
from levelfield.specs.base import MOST_DEVICES, MOST_LAYERS, MOST_NODES, Value
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout, parse_layout


class Network(Value):
    """The network between nodes, as the report describes it; the rate of each node in one direction."""

    description: str
    bytes_per_second: float = Field(gt=0)
    source: str


class Shape(Value):
    """The model's shape as the report prints it."""

    layers: int = Field(ge=1, le=MOST_LAYERS)
    hidden_size: int = Field(ge=1)
    heads: int = Field(ge=1)


class Setting(Value):
    """What was run, with enough detail to plan it again. None: not public.

    case: the case of Levelfield with the same work. chip: its name in vendors/*; None when withheld.
    layout: the layout that ran, in any notation. layout_printed: the report's own text when it is incomplete.
    micro_batch, global_batch: sequences. recompute: `selective-attention` is Megatron's.
    """

    case: str | None = None
    framework: str
    framework_version: str | None = None
    chip: str | None = None
    nodes: int = Field(ge=1, le=MOST_NODES)
    devices_per_node: int = Field(ge=1, le=MOST_DEVICES)
    layout: str
    layout_printed: str | None = None
    micro_batch: int = Field(ge=1)
    accumulation: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    recompute: Literal["none", "selective", "selective-attention", "full"] | None = None
    precision: Precision
    attention: Literal["flash", "materialised"] | None = None
    network: Network | None = None
    model: Shape | None = None

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def parallel(self) -> Layout:
        return parse_layout(self.layout).layout

    @model_validator(mode="after")
    def _layouts_are_readable(self) -> Setting:
        for text in filter(None, (self.layout, self.layout_printed)):
            try:
                parse_layout(text)
            except LayoutError as error:
                raise ValueError(str(error)) from None
        return self
