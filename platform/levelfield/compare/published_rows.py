"""Puts measured results beside published rows and reported runs of the same case, each figure with its origin.

Published tokens/s are converted to tokens/s per device. MFU is computed from them by the headline formula, of the
case's own model and Levelfield's peak of the chip. Memory is that of one device in bytes. A figure that cannot be
converted is absent, with the reason. A reported run is a log that `evidence read` read; whoever read it named its case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.measure.flops import flops_per_token, formula_version
from levelfield.measure.utilisation import mfu, peak_range
from levelfield.report import result_words, words
from levelfield.report.escapes import escape_markdown, markdown_table
from levelfield.report.sheets import pad_row
from levelfield.report.tables import csv_text
from levelfield.report.words import format_number, gib, wrapped
from levelfield.specs.case import Precision, Work
from levelfield.specs.figures import PublishedRow
from levelfield.specs.readable_json import json_text
from levelfield.specs.reported import FigureName, ReportedFigure, ReportedRow, ReportedSet
from levelfield.specs.result import Result
from levelfield.specs.run_figures import HEADLINE_FORMULA, MFU_TITLE
from levelfield.specs.vendor import Chip

RATE: FigureName = "tokens_per_second_per_device"
FIGURES_PER_ROW = 3  # tokens/s/device, MFU, memory
# The step time with more digits comes first. samples/s is only a fallback: it is rounded more than times are.
_STEP_TIMES = ("step_seconds_finer", "step_seconds")

_CONVENTION = (
    "Published rows are converted: tokens/s per device as in the run's own figures, MFU by "
    f"{formula_version(HEADLINE_FORMULA)} of the case's model and Levelfield's peak of the chip, "
    "memory of one device in GiB."
)
_INDENT = 11
NO_CHIP = "the log's chip is not stated"


@dataclass(frozen=True)
class FigureRow:
    """One row, measured, published or reported."""

    origin: str
    name: str
    case: str
    framework: str  # with its version
    hardware: str  # nodes, devices and chip
    layout: str
    micro_batch: int | None
    precision: str
    status: str
    source: str  # where it was published; of a reported run also its day; empty for a measured row
    tokens_per_second_per_device: float | None
    tokens_from: str  # as mfu_from and memory_from: the origin of the figure, or the reason why it is absent
    mfu_low: float | None  # fractions of the peak, by mfu_formula; they differ only for mixed fp8
    mfu_high: float | None
    mfu_from: str
    memory_bytes: float | None
    memory_from: str
    mfu_formula: str = formula_version(HEADLINE_FORMULA)

    @property
    def mfu(self) -> str:
        if self.mfu_low is None or self.mfu_high is None:
            return words.NONE
        low, high = f"{100 * self.mfu_low:.1f}", f"{100 * self.mfu_high:.1f}"
        return f"{low} %" if low == high else f"{low}-{high} %"

    @property
    def absence_reasons(self) -> list[str]:
        """The reasons for missing figures."""
        figures = {
            "tokens/s/device": (self.tokens_per_second_per_device, self.tokens_from),
            "MFU": (self.mfu_high, self.mfu_from),
            "memory": (self.memory_bytes, self.memory_from),
        }
        return [f"no {name}: {reason}" for name, (value, reason) in figures.items() if value is None]


def figure_rows(results: Sequence[Result], registry: Registry) -> list[FigureRow]:
    """Return the rows of each case: measured ones, then published ones, then reported ones."""
    rows: list[FigureRow] = []
    for case in dict.fromkeys(result.case for result in results):
        members = [result for result in results if result.case == case]
        rows += [measured_row(result) for result in members]
        if any(result.scale == "full" for result in members):
            rows += [*published_rows(case, registry), *reported_rows(case, registry)]
    return rows


def missing_row_remarks(results: Sequence[Result], rows: Sequence[FigureRow]) -> Iterator[str]:
    """Return a remark for each case without published rows."""
    for case in dict.fromkeys(result.case for result in results):
        if all(result.scale == "smoke" for result in results if result.case == case):
            yield f"{case}: measured at smoke scale; published rows are full-scale work, so none is shown"
        elif not any(row.case == case and row.origin != "measured" for row in rows):
            yield f"{case}: found no published row of this case"


def measured_row(result: Result) -> FigureRow:
    utilisation, (memory_name, memory_bytes) = (
        result_words.find_utilisation(result, HEADLINE_FORMULA),
        result_words.first_known_memory(result),
    )
    speed, memory_reason, status = result.throughput, "no counter gave one", result_words.status_in_words(result)
    if result.status.is_unproven:  # published rows beside it would be a comparison
        utilisation, memory_bytes, speed, memory_reason = None, None, None, f"the run is {status}"
    return FigureRow(
        origin="measured",
        name=result.run_id,
        case=result.case,
        framework=f"{result.framework} {result.framework_version}",
        hardware=f"{result.nodes}x{result.devices // result.nodes} {result.chip}",
        layout=str(result.layout),
        micro_batch=result.micro_batch,
        precision=result.precision,
        status=status,
        source="",
        tokens_per_second_per_device=speed.tokens_per_second_per_device if speed else None,
        tokens_from="measured" if speed else f"the run is {status}",
        mfu_low=utilisation.low if utilisation else None,
        mfu_high=utilisation.high if utilisation else None,
        mfu_from=(utilisation.reason or "measured") if utilisation else f"the run is {status}",
        memory_bytes=memory_bytes,
        memory_from=f"{memory_name} peak" if memory_bytes is not None else memory_reason,
    )


def published_rows(case: str, registry: Registry) -> list[FigureRow]:
    """Return the published rows of this case in all sets, converted."""
    sets = [registry.published_set(name) for name in sorted(registry.published)]
    published = [(figure_set, row) for figure_set in sets for row in figure_set.rows if row.setting.case == case]
    if not published:
        return []
    work = registry.case(case).work("full")
    chips = {row.setting.chip: _chip_or_reason(row.setting.chip, registry) for _, row in published}
    rows = []
    for figure_set, row in published:
        setting, (tokens, tokens_from) = row.setting, rate_and_origin(row)
        low, high, mfu_from = _converted_mfu(
            tokens, setting.precision, setting.sequence_length, work, chips[setting.chip]
        )
        memory = row.values("memory_bytes")
        memory_origin = f"printed: the fullest of {len(memory)} pipeline stages" if len(memory) > 1 else "printed"
        figure_row = FigureRow(
            origin="published",
            name=f"{figure_set.name}: {row.name}",
            case=setting.case or "",
            framework=f"{setting.framework} {setting.framework_version or ''}".strip(),
            hardware=f"{setting.nodes}x{setting.devices_per_node} {setting.chip or 'withheld'}",
            layout=str(setting.parsed_layout),
            micro_batch=setting.micro_batch,
            precision=setting.precision,
            status=row.status,
            source=", ".join(source.where for source in figure_set.sources.values()),
            tokens_per_second_per_device=tokens,
            tokens_from=tokens_from,
            mfu_low=low,
            mfu_high=high,
            mfu_from=mfu_from,
            memory_bytes=max(memory, default=None),
            memory_from=memory_origin if memory else row.figures.get("memory_bytes", row).status,
        )
        rows.append(figure_row)
    return rows


def reported_sets(registry: Registry) -> list[ReportedSet]:
    """Return the sets of runs that others logged, by their names."""
    names = sorted(registry.reported)
    return [registry.document(ReportedSet, "reported set", name, registry.reported) for name in names]


def reported_rows(case: str, registry: Registry) -> list[FigureRow]:
    """Return the reported runs that their readers assigned to this case, with what differs from it."""
    reported = [
        (reported_set, row) for reported_set in reported_sets(registry) for row in reported_set.rows if row.case == case
    ]
    if not reported:
        return []
    work, absent_figure = registry.case(case).work("full"), ReportedFigure(value=None, how="not in the document")
    rows = []
    for reported_set, row in reported:
        chip = _chip_or_reason(row.chip, registry) if row.chip else NO_CHIP
        tokens, memory = row.figures.get(RATE, absent_figure), row.figures.get("memory_bytes", absent_figure)
        length = row.sequence_length or work.training.sequence_length
        low, high, mfu_from = _converted_mfu(tokens.value, row.precision, length, work, chip)
        figure_row = FigureRow(
            origin="reported",
            name=f"{reported_set.name}: {row.name}",
            case=row.case or "",
            framework=row.framework or row.format,
            hardware=f"{f'{row.devices}x ' if row.devices else ''}{row.chip or 'chip not stated'}",
            layout=row.layout or words.NONE,
            micro_batch=row.micro_batch,
            precision=row.precision or words.NONE,
            status="; ".join(["reported", *differences_from_case(row, work)]),
            source=reported_set.source,
            tokens_per_second_per_device=tokens.value,
            tokens_from=tokens.how,
            mfu_low=low,
            mfu_high=high,
            mfu_from=mfu_from,
            memory_bytes=memory.value,
            memory_from=memory.how,
        )
        rows.append(figure_row)
    return rows


def _chip_or_reason(name: str | None, registry: Registry) -> Chip | str:
    """Return Levelfield's data of the chip, or the reason why there is none."""
    if name is None:
        return "the chip is withheld"
    try:
        return find_chip(registry, name)[1]
    except UsageError as problem:
        return str(problem)


def _converted_mfu(
    tokens: float | None, precision: Precision | None, length: int, work: Work, chip: Chip | str
) -> tuple[float | None, float | None, str]:
    """Return (low, high, origin): MFU by the headline formula from published tokens/s, or None with the reason."""
    if tokens is None:
        return None, None, "no tokens/s to convert"
    if isinstance(chip, str):
        return None, None, chip
    if precision is None:
        fault = peak_excess(tokens * flops_per_token(HEADLINE_FORMULA, work.model, length), chip, None)
        return None, None, fault or "the log does not print the precision"
    utilisation = mfu(HEADLINE_FORMULA, work.model, length, tokens, peak_range(precision, chip.peaks))
    if utilisation.high is None:
        return None, None, str(utilisation.reason)
    return (
        utilisation.low,
        utilisation.high,
        f"converted: {utilisation.formula} of {utilisation.peak_tflops:g} TFLOP/s, {utilisation.peak_source}",
    )


def differences_from_case(row: ReportedRow, work: Work) -> list[str]:
    """Return sentences on what the log states and the case has otherwise: the same model then does other work."""
    training = work.training
    pairs = {
        "global batch": (row.global_batch, training.global_batch),
        "sequence length": (row.sequence_length, training.sequence_length),
    }
    texts = [
        f"{name} {value}, the case has {expected}"
        for name, (value, expected) in pairs.items()
        if value not in (None, expected)
    ]
    unprinted = " and ".join(name for name, (value, _) in pairs.items() if value is None)
    return [*texts, f"{unprinted} not printed"] if unprinted else texts


def peak_excess(flops: float, chip: Chip, precision: Precision | None) -> str | None:
    """Return how far these FLOP/s exceed the chip's peak, in words; None where they do not, or no peak is public.

    The peak is that of the precision, else the highest of all.
    """
    range_of_precision = peak_range(precision, chip.peaks) if precision else None
    precision_peak = range_of_precision and (range_of_precision.fp8 or range_of_precision.peak)
    highest = max((peak.tflops for peak in chip.peaks.values()), default=None)
    peak, kind = (precision_peak.tflops, precision) if precision_peak else (highest, "highest")
    tflops = flops / 1e12
    if peak is None or tflops <= peak:
        return None
    return f"{tflops:,.4g} TFLOP/s of a device, {tflops / peak:.4g} times {chip.name}'s {kind} peak of {peak:,.4g}"


def rate_and_origin(row: PublishedRow) -> tuple[float | None, str]:
    """Return tokens/s per device and its origin: printed, else from the step time, else from samples/s.

    The origin is `printed`, `converted` with the arithmetic, or the reason for None.
    """
    setting = row.setting
    printed = row.figure("tokens_per_second_per_device")
    if printed is not None:
        return printed, "printed"
    for seconds in filter(None, map(row.figure, _STEP_TIMES)):
        value = setting.global_batch * setting.sequence_length / seconds / setting.devices
        return (
            value,
            f"converted: {setting.global_batch} x {setting.sequence_length} / {seconds:.10g} s / {setting.devices}",
        )
    samples = row.figure("samples_per_second")
    if samples is not None:
        value = samples * setting.sequence_length / setting.devices
        return value, f"converted: {samples:g} samples/s x {setting.sequence_length} / {setting.devices}"
    return None, f"no throughput: {row.status if row.status != 'published' else 'none is printed'}"


def format_figure_rows(form: str, results: Sequence[Result], registry: Registry) -> str:
    """Return the table in one of the platform's formats: table, markdown, csv or json."""
    rows = figure_rows(results, registry)
    notes = list(missing_row_remarks(results, rows))
    dictionaries = [asdict(line) for line in rows]
    writers = {
        "table": lambda: _format_table(rows, notes),
        "markdown": lambda: _format_markdown(rows, notes),
        "csv": lambda: csv_text(dictionaries),  # raw numbers with units in their names, each with its origin
        "json": lambda: json_text({"rows": dictionaries, "remarks": notes}) + "\n",
    }
    return writers[form]()


def _format_table(rows: Sequence[FigureRow], notes: Sequence[str]) -> str:
    """Return three lines per row and the reasons for absent figures, within 80 columns."""
    text = [wrapped(_CONVENTION, 0), ""]
    for row in rows:
        micro_batch = row.micro_batch or words.NONE
        hardware = f"{row.framework} on {row.hardware}, {row.layout}, micro-batch {micro_batch}, {row.precision}"
        parts = [f"{hardware}{'' if row.status in ('published', 'valid') else f', {row.status}'}"]
        if row.origin == "reported":
            parts.append(f"source: {row.source}")
        if len(row.absence_reasons) < FIGURES_PER_ROW:
            parts.append(f"{_tokens_text(row, ' tokens/s/device')}, {gib(row.memory_bytes)}")
            parts.append(f"{MFU_TITLE} {row.mfu}{_origin_suffix(row, row.mfu_from)}")
        text.append(wrapped(pad_row((row.origin, row.name), (_INDENT,), gap=""), _INDENT))
        text += [wrapped(" " * _INDENT + part, _INDENT) for part in (*parts, *_absence_lines(row))]
    return "\n".join([*text, *(wrapped(note, 2) for note in notes)]) + "\n"


def _tokens_text(row: FigureRow, unit: str = "") -> str:
    return f"{format_number(row.tokens_per_second_per_device)}{unit}{_origin_suffix(row, row.tokens_from)}"


def _absence_lines(row: FigureRow) -> list[str]:
    return row.absence_reasons if len(row.absence_reasons) < FIGURES_PER_ROW else [f"no figures: {row.status}"]


def _origin_suffix(row: FigureRow, origin: str) -> str:
    is_shown = row.origin != "measured" and origin.startswith(("converted", "computed", "printed"))
    return f" ({origin.partition(':')[0]})" if is_shown else ""


def _format_markdown(rows: Sequence[FigureRow], notes: Sequence[str]) -> str:
    """Return one table; below it the conversion rules and the reasons for absent figures."""
    names = ("", "row", "framework", "devices", "layout", "micro-batch", "precision", "status")
    fields = ("origin", "name", "framework", "hardware", "layout", "micro_batch", "precision", "status")
    figures = ("tokens/s/device", MFU_TITLE, "memory")
    table_rows = [
        (
            *(str(getattr(row, field) or words.NONE) for field in fields),
            _tokens_text(row),
            f"{row.mfu}{_origin_suffix(row, row.mfu_from)}",
            gib(row.memory_bytes),
        )
        for row in rows
    ]
    remarks = [f"{row.name}: {reason}" for row in rows for reason in _absence_lines(row)]
    remarks += [f"{row.name}: from {row.source}" for row in rows if row.origin == "reported"]
    lines_below = ["", _CONVENTION, "", *(f"- {escape_markdown(text)}" for text in (*remarks, *notes))]
    return "\n".join([*markdown_table((*names, *figures), table_rows), *lines_below]) + "\n"
