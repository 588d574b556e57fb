"""`evidence read`: read others' logs as reported runs, to stand beside results"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_chips_option, add_json_option, registry_of, usage_error_if_unwritable
from levelfield.errors import DocumentError, UnknownName, UsageError
from levelfield.report.sheets import labelled_line
from levelfield.rundir.directory import write_new_file

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.case import Work
    from levelfield.specs.reported import ReportedRow, ReportedSet

_READ_HELP = """\
Read logs that other tools wrote: Megatron, NeMo, torchtitan, MaxText,
DeepSpeed, llm-foundry, nanoGPT, nanochat, FlagPerf, PaddleNLP, OneFlow, MLPerf
(`:::MLLOG`), Hugging Face's Trainer (trainer_state.json), and archives of logs,
such as those of dgxc-benchmarking. Each metric is printed in the log, or
computed from what is printed there or given here; else it is absent, with the
reason. Two values that contradict each other give none.

Such a run is *reported*: `report --with-published` and the pages show it beside
results, in no ranking, and with its source and day. They find the file of
--output in DIR/configs/reported/ of --plugins DIR.

examples:
  run_benchmarks.py evidence read run.log --source URL --date 2025-11-12
  run_benchmarks.py evidence read run.log --source URL --date 2025-11-12 \\
      --case llama3_8b --chip H100 --devices 8 --output theirs.json
"""
PRECISIONS = ("fp32", "bf16", "fp16", "fp8")
STATED_FIELDS = ("case", "chip", "devices", "global_batch", "sequence_length", "precision")
_FIGURE_LABELS = {  # by figure: the label of its line, the unit, and the factor to divide by
    "tokens_per_second_per_device": ("speed", "tokens/s/device", 1.0),
    "samples_per_second": ("", "samples/s", 1.0),
    "step_seconds": ("", "s of a step", 1.0),
    "flops_per_second": ("", "TFLOP/s", 1e12),
    "memory_bytes": ("memory", "GiB", 2**30),
    "first_loss": ("loss", "at first", 1.0),
    "last_loss": ("", "at last", 1.0),
}
_LABEL_WIDTH = 9


def _add_read_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("log", nargs="+", type=Path, metavar="FILE", help="a log, or an archive of logs")
    option("--source", required=True, metavar="TEXT", help="where it was published: an address, or a document's title")
    option("--date", required=True, metavar="DAY", help="when it was published, such as 2025-11-12")
    option("--output", type=Path, metavar="NAME.json", help="write the reported runs to this new file")
    add_json_option(parser)
    add_chips_option(parser)
    stated_option = parser.add_argument_group("what the log does not print").add_argument
    stated_option("--case", metavar="NAME", help="the case whose model was trained")
    stated_option("--chip", metavar="NAME", help="the chip; MFU needs one that `show chips` lists")
    stated_option("--devices", type=int, metavar="N", help="the devices of all nodes together")
    stated_option("--global-batch", type=int, metavar="N", help="the sequences of a step")
    stated_option("--sequence-length", type=int, metavar="N", help="the tokens of a sequence")
    stated_option("--precision", choices=PRECISIONS, help="the precision of its matmuls")


def _read(options: argparse.Namespace) -> int:
    """Print the runs of the logs, and write them where --output is given. Return 0."""
    from levelfield.specs.base import dump

    _refuse_future_day(options.date)
    registry, case = registry_of(options), options.case
    stated = {name: value for name in STATED_FIELDS if (value := getattr(options, name)) is not None}
    work = registry.case(case).work("full") if case else None
    if case:
        stated["case"] = registry.canonical_case(case)
    name = options.output.stem if options.output else "reported"
    source = {"name": name, "where": options.source, "date": options.date}
    reported_set = _read_reported_set(registry, options.log, stated, work, source)
    if options.output:
        with usage_error_if_unwritable(options.output):
            write_new_file(options.output, dump(reported_set).encode())
    print(dump(reported_set) if options.json else "\n".join(_set_lines(reported_set, options.output, work)))
    return 0


def _read_reported_set(
    registry: Registry, logs: Sequence[Path], stated: dict[str, Any], work: Work | None, source: Mapping[str, str]
) -> ReportedSet:
    """Return the runs of the logs, completed by what the user states and the logs do not print."""
    from levelfield.catalog.chip_names import find_chip
    from levelfield.publish.log_files import read_log_file
    from levelfield.publish.reported_runs import reported_row
    from levelfield.specs.base import parse
    from levelfield.specs.reported import ReportedSet

    chip, notes, rows = None, tuple[str, ...](), []
    if stated.get("chip"):
        try:
            chip = find_chip(registry, stated["chip"])[1]
            stated = {**stated, "chip": chip.name}
        except UnknownName as error:  # an unknown chip keeps its name, and has no MFU
            notes = (f"the speed was held against no peak: {error}",)
    for path in logs:
        for log in read_log_file(path):
            try:
                row = reported_row(log, stated, work, chip)
            except ValueError as error:
                raise DocumentError(f"{path}: {log.name}: {error}") from None
            rows.append({**row.model_dump(mode="json"), "notes": (*row.notes, *notes)})
    return parse(ReportedSet, {"schema": ReportedSet.schema_name(), **source, "rows": rows}, "evidence read")


def _refuse_future_day(text: str) -> None:
    """Raise UsageError for a day that is in the future in every time zone. The document refuses what is no date."""
    with suppress(ValueError):
        if date.fromisoformat(text) > (latest_day := (datetime.now(timezone.utc) + timedelta(hours=14)).date()):
            raise UsageError(f"--date: found {text}, which is in the future; expected a day up to {latest_day}")


def _set_lines(reported_set: ReportedSet, output: Path | None, work: Work | None) -> Iterator[str]:
    for row in reported_set.rows:
        yield from (labelled_line(*line, _LABEL_WIDTH) for line in _row_lines(row, work))
    yield labelled_line("source", reported_set.source, _LABEL_WIDTH)
    if output:
        yield labelled_line("written", f"{output}: {len(reported_set.rows)} reported run(s)", _LABEL_WIDTH)


def _row_lines(row: ReportedRow, work: Work | None) -> Iterator[tuple[str, str]]:
    from levelfield.compare.published_rows import differences_from_case
    from levelfield.publish.reported_runs import NOT_PRINTED

    yield (
        "log",
        f"{row.name}: {row.format}; the speed is of {row.lines} line(s), steps {row.steps[0]} to {row.steps[1]}",
    )
    fields = ("case", "chip", "devices", "layout", "micro_batch", "global_batch", "sequence_length", "precision")
    work_texts = [f"{name.replace('_', ' ')} {getattr(row, name)}" for name in fields if getattr(row, name) is not None]
    yield "work", ", ".join(work_texts) or "the log does not print it"
    if row.given:
        yield "given", f"by your word: {', '.join(name.replace('_', ' ') for name in row.given)}"
    for name, figure in row.figures.items():
        label, unit, scale = _FIGURE_LABELS[name]
        if figure.value is not None:
            yield label, f"{figure.value / scale:,.6g} {unit}, {figure.how}"
        elif figure.how != NOT_PRINTED:
            yield label, f"no {'loss ' if name.endswith('_loss') else ''}{unit}: {figure.how}"
    for difference in differences_from_case(row, work) if work else ():
        yield "differs", difference
    for note in row.notes:
        yield "note", note


COMMANDS = {"evidence read": Command(_READ_HELP, _add_read_options, _read)}
