"""Published runs that are in none of configs/published, as questions to the planner, and what is measured on them.

A file of runs has `rows`, each whole, or `groups` whose `shared` fields hold for all their rows, and `models` by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.predict import layout_search, machines
from levelfield.specs.architecture import Model
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.case import LossScale, Precision, Work
from levelfield.specs.constants import Constants, MemoryModel, Pace, Program
from levelfield.specs.layout import parse_layout
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import Chip, PeakDtype

RUNS = Path(__file__).parents[1] / "data" / "unseen_runs.json"
CONTEXT_RUNS = RUNS.with_name("context_runs.json")  # in no fit
MIXTURE_RUNS = RUNS.with_name("mixture_runs.json")  # in no fit
RECENT_RUNS = RUNS.with_name("recent_runs.json")  # of 2025 and 2026; half of them for no fit ever
LATER_RUNS = RUNS.with_name("later_runs.json")  # found after all of these; in no fit
OLD_PROGRAMS = RUNS.with_name("programs.yaml")  # of published runs; configs/planner has those of today
GIB = 2**30
EVERYTHING = layout_search.SupportedParallelism(frozenset(), layout_search.RECOMPUTATIONS)
# Chips that no vendor lists: the listed chip that has their dies, and what differs. HBM2e of an H100: arXiv 2604.11391.
LIKE = {
    "H100-96GB-500W": (
        "H100-SXM5-80GB",
        {"memory_bytes": 96 * 10**9, "memory_bandwidth_bytes_per_second": 2.41e12},
        500 / 700,  # of the power
    )
}
SHORT_SWEEP, TAU_SWEEP = 2, 4
# What a row says in its name, group, note or source, all of it, and the program that it names; the first counts.
# torchao measured H100s with torchtitan 0.0.2, and the other chips with commits of August 2025.
PROGRAMS = (
    ("RMS kernel", "aleph_alpha_rms"),
    ("|flash_attention2", "aleph_alpha_flash2"),
    ("|flash_attentionv1", "aleph_alpha_flash1"),
    ("(PURE)", "llm_foundry_pure"),
    ("mosaicml/llm-foundry", "llm_foundry"),
    (" eager github.com/pytorch/torchtitan", "torchtitan_eager"),
    ("_202506", "torchtitan_2025"),
    ("torchao-H100 + rowwise", "torchtitan_rowwise"),
    ("torchao-H100", "torchtitan"),
    ("torchao- + rowwise", "torchtitan_2025_rowwise"),
    ("torchao-", "torchtitan_2025"),
    ("pytorch/torchtitan", "torchtitan"),
    ("arXiv 2104.04473", "megatron_2021"),
    ("arXiv 2205.05198", "megatron_2021"),
    ("OneFlow-Benchmark", "megatron_2021"),
    ("NVIDIA-NeMo/Automodel", "automodel"),
    ("all-to-alls overlap", "megatron_bridge_overlapped"),
    ("NVIDIA-NeMo/Megatron-Bridge", "megatron_bridge"),
    ("megatron/core/transformer/moe", "nemo"),
    ("container 24.03", "nemo_2403"),
    ("NeMo 25.09", "nemo_2509"),
    ("NeMo", "nemo"),
    ("megatron-deepspeed", "megatron_deepspeed"),
    ("gist.github.com/chenyaofo", "transformers"),
)


@dataclass(frozen=True)
class Run:
    """A published run. rate: tokens/s of one device; memory_bytes: as published; both None where not published.

    fitted: whether the constants may be fitted on it. ran_out: it ran out of memory. has_all_settings: the
    source states them, so that the row counts in medians. speed_stated: the same for the unit of its speed.
    """

    name: str
    group: str
    framework: str
    model: str
    fitted: bool
    row: dict[str, Any]

    @property
    def rate(self) -> float | None:
        return self.row["tokens_per_second_per_device"]

    @property
    def memory_bytes(self) -> float | None:
        return self.row["memory_gib"] and self.row["memory_gib"] * GIB

    @property
    def ran_out(self) -> bool:
        return bool(self.row["settings"] == "oom")

    @property
    def has_all_settings(self) -> bool:
        return self.row["settings"] != "partial"

    @property
    def speed_stated(self) -> bool:
        return self.has_all_settings and not self.row["quality"].startswith("throughput unit")

    @property
    def listed_chip(self) -> str:
        """The chip, or the listed one that has its dies."""
        return LIKE[self.row["chip"]][0] if self.row["chip"] in LIKE else str(self.row["chip"])

    @property
    def is_mixture(self) -> bool:
        return self.row["model_settings"].get("experts") is not None

    @property
    def devices(self) -> int:
        return int(self.row["nodes"] * self.row["devices_per_node"])

    @property
    def program(self) -> str | None:
        """Return the program that ran it, by what the row says; None: the framework's own."""
        description = " ".join(str(self.row.get(key)) for key in ("id", "group", "note", "source"))
        program = next((name for marks, name in PROGRAMS if all(m in description for m in marks.split(" + "))), None)
        # No FlashAttention runs on a V100: Megatron materialised the scores there.
        return "megatron_2021" if program is None and self.row["chip"].startswith("V100") else program

    @property
    def sweep(self) -> tuple[object, ...]:
        keys = ("chip", "sequence_length", "precision")
        return (self.group, self.model, self.devices, *(self.row[key] for key in keys))

    @cached_property
    def tuning(self) -> Tuning:
        row = self.row
        return Tuning(
            layout=parse_layout(row["layout"]).layout,
            micro_batch=max(1, row["micro_batch"]),
            recompute="none" if row["recompute"] == "?" else row["recompute"],
            virtual_pipeline=max(1, row["virtual_pipeline"]),
        )


def runs_of(path: Path) -> list[Run]:
    """Return all runs of a file in either form."""
    content = json.loads(path.read_text())
    rows = content.get("rows") or [
        {"group": name, **group["shared"], **row} for name, group in content["groups"].items() for row in group["rows"]
    ]
    models = content.get("models", {})
    half = _half(rows)
    return [
        Run(
            r["id"],
            r["group"],
            r["framework"],
            r["model"],
            r["id"] in half,
            {**r, "model_settings": _settings(r, models)},
        )
        for r in rows
    ]


def _half(rows: list[dict[str, Any]]) -> set[str]:
    """Return the names of every second run of each group, in the order of their digests."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for r in rows:
        kinds.setdefault((r["group"], r["settings"] == "oom"), []).append(r["id"])
    ordered = (sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()) for names in kinds.values())
    return {name for names in ordered for name in names[::2]}


def _settings(row: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    return row.get("model_settings") or models[row["model"]]


@cache
def old_programs() -> dict[str, dict[str, Program]]:
    """Return the programs of OLD_PROGRAMS by framework and name."""
    return {
        framework: {name: Program.model_validate(fields) for name, fields in programs.items()}
        for framework, programs in read_mapping(OLD_PROGRAMS, "setting").items()
    }


def _precision(name: str) -> tuple[Precision, PeakDtype | None]:
    """Return the precision of a row's values, and that of its products where it is another."""
    return ("fp8", "nvfp4") if name == "nvfp4" else (cast(Precision, name), None)


class Questions:
    """The questions to the planner, with the constants of each run's framework and program. chips: by name, instead of
    the registry's."""

    def __init__(self, registry: Registry, chips: dict[str, Chip] | None = None) -> None:
        self.registry, self.chips = registry, chips or {}
        self.base = registry.case("gpt3_6.7B").work("full")

    def question(self, run: Run) -> layout_search.LayoutQuestion:
        row = run.row
        chip, power = self._chip(row["chip"])
        values, products = _precision(row["precision"])
        network = row["network_bytes_per_second_per_node"]
        machine = machines.machine_rates(chip, values, row["devices_per_node"], network, products)
        machine = with_power(machine, power)
        constants = self.constants(run)
        work = self._work(run)
        return layout_search.LayoutQuestion(work, machine, constants, EVERYTHING, False, run.devices, chip.memory_bytes)

    def constants_with_programs(self, framework: str) -> Constants:
        """Return the constants of a framework, with the old programs beside those of configs/planner."""
        constants = self.registry.planner_constants(framework)
        assert constants is not None
        return constants.model_copy(update={"programs": {**constants.programs, **old_programs().get(framework, {})}})

    def constants(self, run: Run) -> Constants:
        constants = self.constants_with_programs(run.framework)
        constants = constants.for_program(run.program) if run.program in constants.programs else constants
        return constants.for_products(run.row["precision"])

    def _chip(self, name: str) -> tuple[Chip, float]:
        """Return the chip, and the share of its power that it may take."""
        like, changes, power = LIKE.get(name, (name, {}, 1.0))
        chip = self.chips.get(like) or find_chip(self.registry, like)[1]
        return chip.model_copy(update=changes), power

    def _work(self, run: Run) -> Work:
        row = run.row
        model = Model.model_validate({**row["model_settings"], "init_std": 0.02, "scaled_residual_init": True})
        changes = {name: row[name] for name in ("sequence_length", "global_batch")}
        changes["precision"] = _precision(row["precision"])[0]
        if row["precision"] == "fp16":
            changes["loss_scale"] = LossScale(initial=2**16, growth_interval=1000)
        return self.base.model_copy(update={"model": model, "training": self.base.training.model_copy(update=changes)})


def with_power(machine: machines.MachineRates, share: float) -> machines.MachineRates:
    """Return the machine with its devices held to a share of their power. Large products and attention take all of it,
    so their rates fall with it; the memory's do not."""
    fp8 = machine.fp8_matmul_flops_per_second
    return replace(
        machine,
        matmul_flops_per_second=share * machine.matmul_flops_per_second,
        fp8_matmul_flops_per_second=share * fp8 if fp8 else None,
        attention={kernel: share * rate for kernel, rate in machine.attention.items()},
    )


# What a program does and models/* do not, one after another: its name, and the fields of the constants that say it.
DESCRIPTION = (
    ("nothing", ()),
    ("its kernel of attention", ("attention",)),
    ("and what it computes in several calls", ("unfused",)),
    ("and what it overlaps and copies", ("overlap", "tensor_overlap", "reduces_whole", "exchange_copies")),
    ("and its widths, what it keeps and computes again", tuple(MemoryModel.model_fields)),
)


class OwnQuestions(Questions):
    """The questions by the framework's own constants, which every default plan takes, with as much of the published
    program's description as `described_fields` names."""

    def __init__(self, registry: Registry, described_fields: Iterable[str] = ()) -> None:
        super().__init__(registry)
        self.described_fields = frozenset(described_fields)

    def constants(self, run: Run) -> Constants:
        constants, described = self.constants_with_programs(run.framework), super().constants(run)
        return constants.model_copy(
            update={
                "pace": constants.pace.model_copy(update=self._described_values(described.pace)),
                "keeping": constants.keeping.model_copy(update=self._described_values(described.keeping)),
            }
        )

    def _described_values(self, part: Pace | MemoryModel) -> dict[str, object]:
        return {name: getattr(part, name) for name in self.described_fields & set(type(part).model_fields)}


@dataclass(frozen=True)
class Judged:
    """A run beside its estimate. capacity_bytes: the memory of its chip. is_tight: nearly all of it is needed."""

    run: Run
    estimate: layout_search.LayoutEstimate
    capacity_bytes: int = 0
    is_tight: bool = False

    @property
    def rate_off(self) -> float | None:
        """The predicted rate over the published, less 1; None where none is published."""
        return self.estimate.tokens_per_second / self.run.rate - 1 if self.run.rate else None

    @property
    def speed_off(self) -> float | None:
        """The same, of runs whose source states their settings and the unit of their speed."""
        return self.rate_off if self.run.speed_stated else None

    @property
    def free_gib(self) -> float:
        """The memory of the chip less the predicted need; below 0 where the run is predicted not to fit."""
        return (self.capacity_bytes - self.estimate.memory.total) / GIB

    @property
    def memory_off(self) -> float | None:
        memory = self.run.memory_bytes
        return None if memory is None or not self.run.has_all_settings else self.estimate.memory.total / memory - 1


def judge_runs(runs: Iterable[Run], questions: Questions) -> list[Judged]:
    return [_judge_run(run, questions.question(run)) for run in runs]


def _judge_run(run: Run, question: layout_search.LayoutQuestion) -> Judged:
    row = layout_search.predict(question, run.tuning)
    return Judged(run, row, question.capacity_bytes or 0, layout_search.is_tight(question, row.memory.total))


def spread(errors: Iterable[float | None]) -> tuple[int, float, float]:
    """Return how many errors there are, the median of their sizes, and the 90th percentile (nearest rank)."""
    sizes = sorted(abs(error) for error in errors if error is not None)
    if not sizes:
        return 0, math.nan, math.nan
    return len(sizes), statistics.median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]


@dataclass(frozen=True)
class Sweep:
    """Runs of one model on equal devices by one program, in several layouts."""

    name: str
    runs: tuple[Judged, ...]

    @property
    def best(self) -> float:
        """The highest published rate."""
        return max(j.run.rate or 0 for j in self.runs)

    @property
    def first(self) -> Judged | None:
        """Return the run that a default run takes: the fastest of those that fit and are not tight, else of those that
        fit."""
        fitting = [j for j in self.runs if j.estimate.fits]
        return max(fitting, key=lambda j: (not j.is_tight, j.estimate.tokens_per_second), default=None)

    @property
    def first_ran(self) -> bool:
        return self.first is not None and not self.first.run.ran_out

    @property
    def regret(self) -> float:
        """Return what the first-ranked run loses against the best published one; all of it where it did not run."""
        return 1 - (self.first.run.rate or 0) / self.best if self.first else 1.0

    @property
    def tau(self) -> float | None:
        """Return Kendall's tau between predicted and published rates; None for too few runs."""
        pairs = [(j.estimate.tokens_per_second, j.run.rate) for j in self.runs if j.run.rate]
        return kendall([(p, r) for p, r in pairs if r]) if len(pairs) >= TAU_SWEEP else None


def kendall(pairs: list[tuple[float, float]]) -> float:
    """Return tau-a: the share of pairs in the same order less the share in the opposite order."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs)


def sweeps_of(judged_runs: Iterable[Judged]) -> list[Sweep]:
    """Return the sweeps in which at least two runs have a published rate."""
    sets: dict[tuple[object, ...], list[Judged]] = {}
    for j in judged_runs:
        if j.run.speed_stated and (j.run.rate or j.run.ran_out):
            sets.setdefault(j.run.sweep, []).append(j)
    sweeps = [Sweep(" ".join(str(part) for part in key), tuple(runs)) for key, runs in sets.items()]
    return [s for s in sweeps if sum(j.run.rate is not None for j in s.runs) >= SHORT_SWEEP]


__all__ = [
    "CONTEXT_RUNS",
    "DESCRIPTION",
    "RUNS",
    "Judged",
    "OwnQuestions",
    "Questions",
    "Run",
    "Sweep",
    "judge_runs",
    "replace",
    "runs_of",
    "spread",
    "sweeps_of",
]
