"""The list of figures of a run: name, unit, place in result.json, how it is shown, and whether the gate holds it.

Repeats, tables, comparisons, the store, pages and the gate walk this list. A new figure is a field of specs/result.py
with its meaning, the line of judge/ that computes it, and an entry here. Standard library only: `--help` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

GIB = 2**30
# The formula of the MFU that stands for a run (docs/decisions/mfu-formulas.md). Each name of the figure has it, so that
# no number of another formula, such as one of an older store, is read as one of this formula.
HEADLINE_FORMULA: Final = "megatron"
MFU_NAME, MFU_TITLE = f"mfu_{HEADLINE_FORMULA}", f"MFU ({HEADLINE_FORMULA})"


@dataclass(frozen=True)
class FigureNames:
    """The title and the unit of a figure on the pages in one language."""

    title: str
    unit: str


@dataclass(frozen=True)
class RunFigure:
    """One figure, with its place in result.json and what each reader of it needs."""

    name: str  # in JSON and CSV
    unit: str
    path: tuple[str, ...]  # keys of result.json, to a number or to a value with its reason
    heading: str  # over its column in tables of repeats and of comparisons
    names: Mapping[str, FigureNames] = field(default_factory=dict)  # on pages, by language
    run_column: str = ""  # the name of its column in tables with a row for each run; empty: it has none
    divisor: float = 1  # from the unit to what a table shows
    digits: int | None = 1  # decimals in a table; None: four significant digits
    largest: float | None = None  # the largest possible value
    host_path: tuple[str, ...] = ()  # the path for a run on shares of a host, where it differs from `path`
    basis: tuple[str, ...] = ()  # keys of the value that two runs must share, so that a ratio is formed
    repeats_basis: tuple[str, ...] = ()  # keys of the value that repeats must share, so that a median is formed
    is_noisy: bool = True  # equal runs differ in it
    is_compared: bool = True
    is_optional: bool = False  # comparisons leave it out where no run has it
    store_column: str = ""  # the name of its column in the store; empty: it is read from the stored result
    worse: Literal[1, -1] | None = None  # the gate holds it to a level, and more (1) or less (-1) is worse
    page_key: str = ""  # what the scripts and texts of the pages call a stored figure
    option: str = ""  # the name of a gated figure on the command line

    @property
    def decimals(self) -> int:
        """How many decimals of the value in `unit` the pages keep: one more than a table shows."""
        return max(0, (4 if self.digits is None else self.digits) + 1 - round(math.log10(self.divisor)))

    def value_and_reason(self, result: Any, is_host: bool) -> tuple[Any, Any]:
        """Return the value and the reason of a missing one. result: a Result or its JSON.

        is_host: whether the devices are shares of a host. Where a text stands in the place of a section, that text is
        the value.
        """
        value, reason = result, None
        for key in self.host_path if is_host and self.host_path else self.path:
            reason, value = value_at(value, "reason"), value_at(value, key)
            if isinstance(value, str):
                return value, None
        is_plain = value is None or isinstance(value, (int, float))
        return (value, reason) if is_plain else (value_at(value, "value"), value_at(value, "reason"))


def value_at(content: Any, *keys: str) -> Any:
    """Return what lies behind the keys of a document or its JSON; None where one is missing.

    In the list of utilisations a key is the name of a formula, whatever its version; its row of the MFU is taken.
    """
    for key in keys:
        if isinstance(content, Mapping):
            content = content.get(key)
        elif isinstance(content, Sequence) and not isinstance(content, str):
            rows = (row for row in content if value_at(row, "kind") == "MFU")
            content = next((row for row in rows if str(value_at(row, "formula")).split("/")[0] == key), None)
        else:
            content = getattr(content, key, None)
    return content


RUN_FIGURES = (
    RunFigure(
        "tokens_per_second_per_device",
        "1/s",
        ("throughput", "tokens_per_second_per_device"),
        "tokens/s/device",
        {"en": FigureNames("Throughput", "tokens/s/device"), "zh": FigureNames("吞吐量", "词元/秒/设备")},
        store_column="tokens_per_second_per_device",
        worse=-1,
        page_key="tokens",
        option="speed",
        run_column="tokens/s/device",
    ),
    RunFigure(
        "step_seconds_median",
        "s",
        ("throughput", "step_seconds", "median"),
        "step, ms",
        divisor=1e-3,
        is_compared=False,
    ),
    RunFigure(
        "memory_bytes",
        "B",
        ("memory", "device_used_peak"),
        "memory, GiB",
        {"en": FigureNames("Peak memory", "GiB"), "zh": FigureNames("内存峰值", "GiB")},
        divisor=GIB,
        digits=3,
        host_path=("memory", "process_peak"),
        store_column="memory_bytes",
        worse=1,
        page_key="memory",
        option="memory",
        run_column="memory",
    ),
    RunFigure(
        "joules_per_token",
        "J/token",
        ("energy", "joules_per_token"),
        "J/token",
        {"en": FigureNames("Energy", "J/token"), "zh": FigureNames("能耗", "J/词元")},
        digits=4,
        store_column="joules_per_token",
        worse=1,
        page_key="energy",
        option="energy",
        run_column="J/token",
    ),
    RunFigure(
        "node_joules_per_token",
        "J/token",
        ("energy", "nodes", "joules_per_token"),
        "J/token, nodes",
        digits=4,
        is_optional=True,
    ),
    RunFigure(
        MFU_NAME,
        "1",
        ("utilisation", HEADLINE_FORMULA),
        f"{MFU_TITLE}, %",
        {"en": FigureNames(MFU_TITLE, "%"), "zh": FigureNames(f"MFU（{HEADLINE_FORMULA} 公式）", "%")},
        divisor=0.01,
        digits=2,
        largest=1.0,
        repeats_basis=("utilisation", HEADLINE_FORMULA, "peak_tflops"),
        store_column=MFU_NAME,
        page_key="mfu",
        run_column=MFU_TITLE,
    ),
    RunFigure(
        "seconds_to_loss",
        "s",
        ("to_loss", "seconds"),
        "s to loss",
        digits=2,
        basis=("to_loss", "level"),
        run_column="s to loss",
    ),
    RunFigure(
        "loss_tail_mean",
        "nats/token",
        ("loss", "tail_mean"),
        "loss",
        {"en": FigureNames("Loss", "nats/token"), "zh": FigureNames("损失", "nat/词元")},
        digits=5,
        is_noisy=False,
        store_column="loss_tail",
        page_key="loss",
        run_column="loss",
    ),
)
# Columns of version 1.0.0, with those in their places. Their numbers mean something else, so none is read.
FORMER_COLUMNS = {"mfu": MFU_NAME}
# By column of the store.
STORED_FIGURES = {figure.store_column: figure for figure in RUN_FIGURES if figure.store_column}
GATED_FIGURES = {column: figure for column, figure in STORED_FIGURES.items() if figure.worse}
GATED_COLUMN_BY_OPTION = {figure.option: column for column, figure in GATED_FIGURES.items()}
