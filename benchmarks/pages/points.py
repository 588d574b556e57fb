"""The published rows as questions to the planner, and how far an answer is from what was published."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.compare.published_rows import rate_and_origin
from levelfield.predict import layout_search, machines
from levelfield.specs.constants import Constants
from levelfield.specs.figures import PublishedRow, Setting
from levelfield.specs.tuning import Recompute, Tuning

SETS = ("flagperf_llama3", "flagperf_gpt3_paddle", "oneflow_gpt", "osdi_gpt2")
# Where the published commands overlap nothing, whatever the framework's own code here does.
WITHOUT_OVERLAP = {"flagperf_llama3"}
EVERYTHING = layout_search.SupportedParallelism(frozenset(), ("none", "selective", "full"))


class LeftOut(Exception):
    """Why a row cannot be predicted."""


@dataclass(frozen=True)
class Point:
    """A published row and the question that it answers. memory_bytes, tokens_per_second: published, None where not.
    left_out: why it is in no fit."""

    set_name: str
    row: PublishedRow
    question: layout_search.LayoutQuestion
    tuning: Tuning
    memory_bytes: float | None
    tokens_per_second: float | None
    left_out: str | None

    @property
    def framework(self) -> str:
        return self.row.setting.framework

    def stated_constants(self, constants: Constants) -> Constants:
        """Return the constants with what the published commands state."""
        if self.set_name not in WITHOUT_OVERLAP:
            return constants
        return constants.model_copy(update={"pace": constants.pace.model_copy(update={"overlap": 0.0})})

    def predicted(self, constants: Constants) -> layout_search.LayoutEstimate:
        return layout_search.predict(replace(self.question, constants=self.stated_constants(constants)), self.tuning)


def points_of(registry: Registry) -> tuple[list[Point], list[tuple[str, str, str]]]:
    """Every row that can be predicted, and the others as set, row and reason."""
    points, skipped = [], []
    for name in SETS:
        for row in registry.published_set(name).rows:
            try:
                points.append(_point(registry, name, row))
            except LeftOut as error:
                skipped.append((name, row.name, str(error)))
    return points, skipped


def _point(registry: Registry, name: str, row: PublishedRow) -> Point:
    """Raises LeftOut for a row that says too little to be planned."""
    setting = row.setting
    if setting.chip is None or setting.case is None:
        raise LeftOut("the report withholds the chip")
    if not row.figures:
        raise LeftOut("no figures were published")
    _, chip = find_chip(registry, setting.chip)
    case = registry.case(setting.case)
    network = setting.network.bytes_per_second if setting.network else None
    assumed = machines.ASSUMED_PORT_BYTES_PER_SECOND * setting.devices_per_node
    machine = machines.machine_rates(chip, setting.precision, setting.devices_per_node, network or assumed)
    constants = registry.planner_constants(setting.framework)
    assert constants is not None
    question = layout_search.LayoutQuestion(
        case.work("full"), machine, constants, EVERYTHING, False, setting.devices, chip.memory_bytes
    )
    return Point(
        name,
        row,
        question,
        _tuning(setting),
        row.figure("memory_bytes"),
        rate_and_origin(row)[0],
        _left_out(row),
    )


def _tuning(setting: Setting) -> Tuning:
    repeated: dict[str | None, Recompute] = {
        "selective-attention": "selective",
        "selective": "selective",
        "full": "full",
    }
    return Tuning(
        layout=setting.parsed_layout, micro_batch=setting.micro_batch, recompute=repeated.get(setting.recompute, "none")
    )


def _left_out(row: PublishedRow) -> str | None:
    if row.setting.recompute is None:
        return "states neither recomputation nor attention kernel; another version of OneFlow"
    return None


def halves(points: Iterable[Point], framework: str, has: Callable[[Point], float | None]) -> list[Point]:
    """Every second row of the framework that has the figure, the first included: what is fitted on."""
    usable = [p for p in points if p.framework == framework and has(p) is not None and p.left_out is None]
    return usable[::2]


def throughput(point: Point) -> float | None:
    return point.tokens_per_second


def memory(point: Point) -> float | None:
    return point.memory_bytes


def time_off(point: Point, constants: Constants) -> float:
    assert point.tokens_per_second is not None
    return math.log(point.predicted(constants).tokens_per_second / point.tokens_per_second)


def memory_off(point: Point, constants: Constants) -> float:
    assert point.memory_bytes is not None
    return math.log(point.predicted(constants).memory.total / point.memory_bytes)


def percent(logarithm: float) -> float:
    return 100 * (math.exp(logarithm) - 1)


def spearman(pairs: list[tuple[float, float]]) -> float:
    ranks = [[sorted(column).index(value) for value in column] for column in zip(*pairs, strict=True)]
    return statistics.correlation(*ranks)
