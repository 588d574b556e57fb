"""`report` (compare chips): results of one run or several: table, markdown, csv, pages"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_NAME, NamedRuns, registry_of
from levelfield.cli.terminal import result_lines
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.publish.foreign_columns import FORMATS as FOREIGN
from levelfield.publish.foreign_columns import as_report
from levelfield.publish.foreign_tables import runs_of
from levelfield.publish.published_rows import beside_published
from levelfield.publish.withholding import FILES, parse_fields, published, published_id, refuse_leaks
from levelfield.report import repeats
from levelfield.report.escapes import printable
from levelfield.report.markdown import run_report
from levelfield.report.tables import as_csv, as_json, as_markdown, as_text
from levelfield.report.words import wrapped
from levelfield.rundir.directory import read_plan, room_left, write_atomically, write_new
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import PRETENDED, Result

_HELP = """\
Report results: one run in full, or several side by side.
RUN is a path, a run id, a part of an id, or `latest`.

examples:
  run_benchmarks.py report latest
  run_benchmarks.py report RUN1 RUN2 --format markdown --output table.md
  run_benchmarks.py report latest --with-published
  run_benchmarks.py report RUN --withhold mfu,peak --bundle DIR
  run_benchmarks.py report pages site
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=RUN_NAME)
    parser.add_argument(
        "--format",
        choices=("table", "markdown", "csv", "json", "flagperf", "oneflow", "osdi"),
        default="table",
        metavar="FORMAT",
        help="table, markdown, csv, json; flagperf, oneflow, osdi: the columns of these reports",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="as --format json")
    parser.add_argument(
        "--with-published", action="store_true", help="add published rows of the same case, by one convention"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    private = parser.add_argument_group("to publish a part of the figures")
    private.add_argument("--withhold", metavar="FIELDS", help="such as mfu,peak: print 'withheld' instead")
    private.add_argument("--bundle", type=Path, metavar="DIR", help="a new folder to publish: every format")


def execute(options: argparse.Namespace) -> int:
    """Compute the results from the raw files, so that an edited result.json changes no report. Return 0.

    Raises the error of a run that goes on or is damaged, after the report of the others. Private tables are not made
    without it: what is published lacks no run that was asked for.
    """
    _refuse_together(options)
    named = NamedRuns(options)
    collected = []
    for each in named.over():
        with named.kept_error():
            collected.append((each, _real(collect(each))))
    if not collected or options.withhold or options.bundle:
        named.raise_error()
    paths, results = [each for each, _ in collected], [result for _, result in collected]
    _print(options, paths, results)
    named.raise_error()
    return 0


def _real(result: Result) -> Result:
    """Return the result. Raises UsageError for one of pretended devices, which has nothing to report."""
    if result.status.failure == PRETENDED:
        raise UsageError(
            f"{result.run_id}: found pretended devices, expected real ones; `evidence collect` shows its words"
        )
    return result


def _print(options: argparse.Namespace, paths: list[RunPaths], results: list[Result]) -> None:
    if options.withhold or options.bundle:
        print(_published(options, results, [read_plan(p) for p in paths]), end="")
        return
    text = _text(options, paths, results)
    if options.output:
        _write(options.output, text)
    else:
        print(text, end="")


def _refuse_together(options: argparse.Namespace) -> None:
    """Raises UsageError for options that need different tables."""
    private = [f"--{name}" for name in ("withhold", "bundle") if getattr(options, name)]
    columns = [f"--format {options.format}"] if options.format in FOREIGN else []
    beside = ["--with-published"] if options.with_published else []
    if sum(map(bool, (private, columns, beside))) > 1:
        given = ", ".join([*private, *columns, *beside])
        raise UsageError(f"report: {given} need different tables; give only one of them")


def _text(options: argparse.Namespace, paths: Sequence[RunPaths], results: Sequence[Result]) -> str:
    if options.format in FOREIGN:
        registry = registry_of(options)
        return as_report(options.format, runs_of(results, [read_plan(p) for p in paths], registry))
    if options.with_published:
        return beside_published(options.format, results, registry_of(options))
    if len(results) == 1:
        table, markdown = _one_run(paths[0], results[0])
    else:
        table, markdown = as_text(results), as_markdown(results) + repeats.as_markdown(results)
        table += "".join(f"{line}\n" for line in repeats.as_lines(results))
    return {"table": table, "markdown": markdown, "csv": as_csv(results), "json": as_json(results)}[options.format]


def _one_run(paths: RunPaths, result: Result) -> tuple[str, str]:
    """Return the result of one run in full, as text and as Markdown."""
    return "\n".join(result_lines(result)) + "\n", run_report(result, read_plan(paths))


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, printable(text))
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}{room_left(error, path)}") from None


def _published(options: argparse.Namespace, results: Sequence[Result], plans: Sequence[Plan]) -> str:
    """Write the bundle and return the text to print. Raises UsageError before anything is written."""
    if not options.bundle or not options.withhold:
        raise UsageError("report: give --withhold FIELDS and --bundle DIR together; the bundle has every format")
    if options.output:
        raise UsageError(f"--output {options.output}: leave it out; --bundle gets the withheld table in every format")
    folder: Path = options.bundle
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--bundle {folder}: exists and is not empty; name a new folder")
    fields = parse_fields(options.withhold)
    names = [published_id(result.run_id, fields) for result in results]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"report: found a run twice: {', '.join(twice)}; name each run once")
    for plan, result in zip(plans, results, strict=True):
        refuse_leaks(plan, result, fields)
    texts = published(results, fields)
    try:
        _write_all(folder, {FILES[name]: text for name, text in texts.items()})
    except OSError as error:
        place = Path(error.filename or folder)
        raise UsageError(f"{place}: cannot be written: {error.strerror}{room_left(error, place)}") from None
    return texts[options.format] + wrapped(f"published  {folder}: {', '.join(FILES.values())}", 11) + "\n"


def _write_all(folder: Path, files: dict[str, str]) -> None:
    """Write the files. Where one fails, none stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undone:
        for name, text in files.items():
            write_new(folder / name, text.encode())
            undone.callback((folder / name).unlink, missing_ok=True)
        undone.pop_all()


COMMANDS = {
    "report": Command(_HELP, arguments, execute),
}
