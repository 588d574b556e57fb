"""Published figures: what others measured and on what, as printed.

The `defaults` of a set hold what its rows share: the `setting`, and in `columns` how each figure is printed. A figure
is named after its quantity in SI units (memory_bytes, step_seconds), whatever unit the report printed. Printed numbers
are read exactly.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from levelfield.errors import LayoutError
from levelfield.specs.base import MAX_DEVICES, MAX_LAYERS, MAX_NODES, Document, Value, repeated_names
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout, parse_layout

FigureStatus = Literal["published", "oom", "reference-only", "withheld", "baseline", "not-published"]
# What one of each unit is in SI units. Tokens and samples are counted in pieces. A percentage is a fraction of 1.
UNITS: dict[str, Fraction] = {
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
    "B": Fraction(1),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "MiB": Fraction(2**20),
    "GiB": Fraction(2**30),
    "%": Fraction(1, 100),
    "FLOP/s": Fraction(1),
    "TFLOP/s": Fraction(10**12),
    "PFLOP/s": Fraction(10**15),
    "samples/s": Fraction(1),
    "tokens/s": Fraction(1),
    "M tokens": Fraction(10**6),
    "pieces": Fraction(1),
    "nats": Fraction(1),
}
_NUMBER = re.compile(r"(?P<before>[↓↑]?)(?P<sign>[-+]?)(?P<number>\d+(?:\.\d+)?)(?P<after>[↓↑]?)%?")


class Network(Value):
    """The network between nodes, as the report describes it; the rate of each node in one direction."""

    description: str
    bytes_per_second: float = Field(gt=0)
    source: str


class Shape(Value):
    """The model's shape as the report prints it."""

    layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: int = Field(ge=1)
    heads: int = Field(ge=1)


class Setting(Value):
    """What was run, with enough detail to plan it again. None: not public."""

    case: str | None = None  # the case of Levelfield with the same work
    framework: str
    framework_version: str | None = None
    chip: str | None = None  # its name in vendors/*; None when withheld
    nodes: int = Field(ge=1, le=MAX_NODES)
    devices_per_node: int = Field(ge=1, le=MAX_DEVICES)
    layout: str  # the layout that ran, in any notation
    layout_printed: str | None = None  # the report's own text when it is incomplete
    micro_batch: int = Field(ge=1)  # in sequences, as the global batch
    accumulation: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    # `selective-attention` is Megatron's.
    recompute: Literal["none", "selective", "selective-attention", "full"] | None = None
    precision: Precision
    attention: Literal["flash", "materialised"] | None = None
    network: Network | None = None
    model: Shape | None = None

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def parsed_layout(self) -> Layout:
        return parse_layout(self.layout).layout

    @model_validator(mode="after")
    def _layouts_are_readable(self) -> Setting:
        for text in filter(None, (self.layout, self.layout_printed)):
            try:
                parse_layout(text)
            except LayoutError as error:
                raise ValueError(str(error)) from None
        return self


class ReportSource(Value):
    """A report: its title, its public place, and a note for the reader."""

    title: str
    where: str
    note: str | None = None


class Column(Value):
    """How a report prints one figure of all its rows."""

    unit: str | None = None  # None: words, not numbers
    header: str | None = None  # the report's own heading
    source: str | None = None
    means: str | None = None  # the unit that the printed unit really stands for, where they differ
    # Constants of the report's own formulas: `parameters` for its MFU, `vocab_size` for its FLOP/s.
    constants: dict[str, PositiveFloat] = Field(default_factory=dict)
    note: str | None = None

    @property
    def scale(self) -> Fraction:
        """What one of the printed unit is in SI units."""
        return UNITS[self.means or self.unit or "pieces"]

    @model_validator(mode="after")
    def _units_exist(self) -> Column:
        if self.means and self.means not in UNITS:
            raise ValueError(f"means: found '{self.means}', expected one of {', '.join(UNITS)}")
        if self.unit and not self.means and self.unit not in UNITS:
            raise ValueError(f"unit: found '{self.unit}', expected one of {', '.join(UNITS)}, or `means` beside it")
        return self


class PublishedFigure(Column):
    """One cell, or a list of cells (memory by pipeline stage): the text exactly as printed, without its unit."""

    text: str | tuple[str, ...]
    status: FigureStatus = "published"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def numbers(self) -> tuple[Fraction, ...]:
        """The numbers in SI units; empty for words and for figures that are not published."""
        if self.unit is None or self.status not in ("published", "reference-only", "baseline"):
            return ()
        return tuple(read_number(text) * self.scale for text in self.texts)

    @model_validator(mode="after")
    def _numbers_are_readable(self) -> PublishedFigure:
        _ = self.numbers
        return self


class PublishedRow(Value):
    """One configuration."""

    name: str
    group: str | None = None
    status: FigureStatus = "published"
    setting: Setting
    baseline: str | None = None  # the row that its changes refer to
    figures: dict[str, PublishedFigure] = Field(default_factory=dict)
    note: str | None = None

    def figure(self, name: str) -> float | None:
        """Return the figure in SI units, the largest of a list, or None when the row has no such number."""
        return max(self.values(name), default=None)

    def values(self, name: str) -> tuple[float, ...]:
        """Return the figure's numbers in SI units: one, or one for each pipeline stage; empty when there is none."""
        figure = self.figures.get(name)
        return tuple(float(number) for number in figure.numbers) if figure else ()


class Defaults(Value):
    """What the rows of a set share. A row's own keys have priority."""

    setting: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, Column] = Field(default_factory=dict)


class FigureSet(Document):
    """configs/published/<name>.yaml"""

    KIND: ClassVar[str] = "figures"

    name: str
    title: str
    sources: dict[str, ReportSource] = Field(min_length=1)
    conventions: tuple[str, ...] = ()  # sentences that apply to all figures
    defaults: Defaults = Defaults()
    rows: tuple[PublishedRow, ...] = Field(min_length=1)

    def row(self, name: str) -> PublishedRow:
        return next(row for row in self.rows if row.name == name)

    @model_validator(mode="before")
    @classmethod
    def _complete_rows(cls, content: Any) -> Any:
        try:
            return _fill_rows_from_defaults(content)
        except (AttributeError, KeyError, TypeError):
            return content  # not the form of the schema: its validation gives a better message

    @model_validator(mode="after")
    def _names_exist(self) -> FigureSet:
        names = [row.name for row in self.rows]
        if repeated := repeated_names(names):
            raise ValueError(f"rows: found the name '{repeated[0]}' twice, expected a unique name for each row")
        for name in filter(None, (row.baseline for row in self.rows)):
            if name not in names:
                raise ValueError(f"baseline: found '{name}', expected the name of a row")
        for source in filter(None, (column.source for column in self.defaults.columns.values())):
            if source not in self.sources:
                raise ValueError(f"columns: found source '{source}', expected one of {', '.join(self.sources)}")
        return self


def _fill_rows_from_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return the document with every row's setting and figures completed from the defaults and the columns."""
    defaults = content.get("defaults") or {}
    try:
        Defaults.model_validate(defaults)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"defaults.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    columns, setting = defaults.get("columns", {}), defaults.get("setting", {})
    rows = [
        {
            **row,
            "setting": {**setting, **row.get("setting", {})},
            "figures": _fill_figures_from_columns(row.get("figures", {}), columns),
        }
        for row in content["rows"]
    ]
    return {**content, "rows": rows}


def _fill_figures_from_columns(figures: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return figures completed from their columns. A figure's own keys win; a bare text is the figure's text."""
    return {
        name: {**columns.get(name, {}), **(cell if isinstance(cell, dict) else {"text": cell})}
        for name, cell in figures.items()
    }


def read_number(text: str) -> Fraction:
    """Read a number: `41`, `-1754`, `40%`, `↓31.3%` or `11.4↓%`. An arrow down is a minus. Raises ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match["before"] and match["after"]):
        raise ValueError(f"found '{text}', expected one number as printed: 41, 40%, -1754 or ↓31.3%")
    is_negative = (match["sign"] == "-") != ("↓" in match["before"] + match["after"])
    return Fraction(match["number"]) * (-1 if is_negative else 1)
