"""Output for people: sentences on stderr during a run, and the result on stdout.

Without a terminal no line is redrawn: a log gets the line of a step every few seconds. A closed pipe, a full disk or a
closed stream ends no command. Control characters of a text do not reach the terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.streams import Streams
from levelfield.report import result_words, words
from levelfield.report.escapes import one_line, printable
from levelfield.report.sheets import format_sheets, format_text, pad_row
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.compare.scaling import Scaling
    from levelfield.corpus.facts import CorpusFacts
    from levelfield.report.sheets import Sheet
    from levelfield.run.runner import Listener
    from levelfield.run.scheduler import Job
    from levelfield.rundir.follower import StepProgress
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.plan import Plan
    from levelfield.specs.result import Result
    from levelfield.testing.findings import CheckFinding

NON_BREAKING_SPACE = "\u00a0"  # in a text: a blank where no line may break
_LINE_CONTINUATION = " \\\n           "


def program_command() -> str:
    """Return the command that starts this program from the current folder."""
    return f"python {short_path(checkout() / 'run_benchmarks.py')}"


def print_command(*parts: str) -> None:
    """Print a command to paste, with the shell's line continuation where it is too long for a line."""
    line = " ".join(parts)
    print(f"         {line if len(line) <= 80 - 9 else _LINE_CONTINUATION.join(parts)}", flush=True)


def short_path(path: Path) -> str:
    """Return the path relative to the current folder where it is below it, else the whole path."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):  # OSError: the current folder was removed
        return str(path)


def print_sheets(form: str, sheets: Iterable[Sheet], values: Mapping[str, object]) -> None:
    """Print tables as text or Markdown, or their values as JSON."""
    if form == "json":
        print(json_text(values))
    else:
        print(format_sheets(form, sheets), end="")


_STATUS_LABELS = {"ok": "ok", "warns": "WARNS", "missing": "missing", "fails": "FAILS", "not applicable": "n/a"}


def print_wrapped(text: str, indent: int = 9) -> None:
    """Print a text. Where it is long, its next lines are indented."""
    print(words.wrapped(text, indent).replace(NON_BREAKING_SPACE, " "), flush=True)


def print_check(finding: CheckFinding, width: int) -> None:
    indent = 8 + 1 + width + 1
    print_wrapped(
        pad_row((_STATUS_LABELS[finding.status], finding.check, printable(finding.says)), (8, width), " "), indent
    )
    if finding.do:
        print_wrapped(pad_row(("", f"> {printable(finding.do)}"), (indent - 3,), " "), indent)


def print_checks(findings: Iterable[CheckFinding], width: int, quiet: bool) -> list[CheckFinding]:
    """Return the findings after printing them one by one as they come, unless `quiet`."""
    printed = []
    for finding in findings:
        printed.append(finding)
        if not quiet:
            print_check(finding, width)
    return printed


def checks_as_json(findings: Sequence[CheckFinding]) -> dict[str, object]:
    """Return whether all checks passed, and every finding without the values of single devices."""
    checks = [{key: value for key, value in asdict(finding).items() if key != "rows"} for finding in findings]
    return {"passes": all(finding.is_good for finding in findings), "checks": checks}


def print_check_summary(name: str, findings: Sequence[CheckFinding]) -> None:
    if bad := [finding.check for finding in findings if not finding.is_good]:
        print_wrapped(f"{name}: {len(bad)} of {len(findings)} checks did not pass: {', '.join(bad)}")
    else:
        print_wrapped(f"{name}: all {sum(finding.status == 'ok' for finding in findings)} checks that apply passed")


LOG_INTERVAL_SECONDS = 5.0
_MIN_ENTRY_COLUMNS = 40  # of a line of an entry that runs beside others, without its name


class Terminal:
    """Prints progress and results."""

    def __init__(
        self,
        quiet: bool = False,
        record_run: Callable[[RunPaths], None] = lambda paths: None,
        width: int = words.WIDTH,
    ) -> None:
        """Print only errors to stderr with `quiet`. record_run: called with every run that has a result.

        width: columns of a line.
        """
        self._quiet, self._record_run, self._width = quiet, record_run, width
        self._has_open_line = False
        self._last_log_time = 0.0

    @property
    def _redraws(self) -> bool:
        return not self._quiet and sys.stderr.isatty()  # a command that is detached loses its terminal

    def listener(self) -> Listener:
        from levelfield.run.runner import Listener

        return Listener(say=self.say, report_step=self.show_step, record_run=self._record_run)

    def say(self, text: str) -> None:
        if not self._quiet:
            self._end_line()
            print(words.wrapped(f"levelfield: {text}", 12, self._width), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print what a person still has to know after the command has ended."""
        self.say(text)

    def run_entry(self, name: str, run: Callable[[Terminal], int]) -> int:
        """Run an entry in a process of its own, with a terminal whose lines have room for its name, which leads each.

        Return the exit code. Errors become sentences.
        """
        from levelfield.cli.main import exit_code_of

        Streams()
        width = max(_MIN_ENTRY_COLUMNS, self._width - len(f"{name}: "))
        return exit_code_of(lambda: run(Terminal(self._quiet, self._record_run, width)))

    def show_entry_line(self, line: str) -> None:
        """Print a line of an entry that runs beside others, led by its name."""
        print(line, file=sys.stderr, flush=True)

    def announce_jobs(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield the same jobs, and before each print what will run and why at this scale."""
        for job in jobs:
            for sentence in announcement(job.plan):
                self.say(sentence)
            yield job

    def show_step(self, plan: Plan, progress: StepProgress) -> None:
        """Show a finished step: a redrawn line on a terminal, a line every few seconds elsewhere."""
        if self._quiet:
            return
        last = progress.step == progress.steps
        if self._redraws:
            self._redraw(progress_line(progress)[: self._width - 1].ljust(self._width - 1))
        elif last or progress.step == 1 or time.monotonic() - self._last_log_time > LOG_INTERVAL_SECONDS:
            print(progress_line(progress), file=sys.stderr, flush=True)
            self._last_log_time = time.monotonic()

    def show_status(self, result: Result) -> None:
        self._end_line()
        if result.status.evidence:
            self.say(f"{result_words.status_in_words(result)}: {result.status.evidence}")

    def print_summary(self, results: Sequence[Result], runs: Path) -> None:
        """Print the results: one run in full, several side by side, suites by entry, and the run directories."""
        from levelfield.report import repeats, tables
        from levelfield.report.one_run import result_lines

        outside_suites = [result for result in results if result.entry is None]
        if len(outside_suites) == 1:
            print("\n".join(result_lines(outside_suites[0])))
        elif outside_suites:
            print(tables.format_text(outside_suites), end="")
        for suite in tables.group_by_suite(results):
            print("\n".join(tables.suite_lines(suite)))
        if lines := repeats.repeat_lines(results, repeats_digests(results, runs)):
            print("\n".join([*lines, ""]))
        for result in results:
            print(f"run      {one_line(short_path(runs / result.run_id))}")

    def print_scaling(self, tables: Sequence[Scaling | str]) -> None:
        """Print the table of each series, or why there is none."""
        from levelfield.compare import scaling

        for table in tables:
            if isinstance(table, str):
                self.say(table)
            else:
                print("\n" + format_text(scaling.scaling_sheets(table)), end="")

    @contextmanager
    def bytes_progress(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a callback that shows progress. Its arguments are the bytes done and the total."""
        last_percent = -1

        def show(done: int, total: int) -> None:
            nonlocal last_percent
            percent = 100 * done // max(1, total)
            if self._redraws and percent != last_percent:
                self._redraw(f"levelfield: {label}: {percent} %")
                last_percent = percent

        try:
            yield show
        finally:
            self._end_line()

    def check_corpus(self, prefix: str) -> CorpusFacts:
        """Return the facts of a corpus after reading all of it, with progress."""
        from levelfield.corpus.integrity import check_corpus

        with self.bytes_progress(f"checking {prefix}") as progress:
            return check_corpus(prefix, progress=progress)

    def _redraw(self, line: str) -> None:
        """Write the line over the last one. The carriage return is written by itself: the streams let it through so."""
        for text in ("\r", line):
            sys.stderr.write(text)
        sys.stderr.flush()
        self._has_open_line = True

    def _end_line(self) -> None:
        if self._has_open_line:
            print(file=sys.stderr)
            self._has_open_line = False


def repeats_digests(results: Sequence[Result], runs: Path) -> list[str | None]:
    """Return for each result the digest that its plan shares with its repeats; None for a run without a plan."""
    from levelfield.errors import LevelfieldError
    from levelfield.rundir.directory import read_plan
    from levelfield.specs.paths import RunPaths

    digests: list[str | None] = []
    for result in results:
        try:
            digests.append(read_plan(RunPaths(runs / result.run_id)).repeats_digest)
        except LevelfieldError:
            digests.append(None)
    return digests


class NoteTaker(Terminal):
    """A terminal without progress, for a mail that is read in the morning: notes are printed at the end."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(one_line(text))

    def show_entry_line(self, line: str) -> None:
        self.note(line)  # an error: its terminal is quiet, too

    def show_status(self, result: Result) -> None:
        if result.status.evidence:
            self.note(f"{result_words.status_in_words(result)}: {result.status.evidence}")


def announcement(plan: Plan) -> list[str]:
    """Return sentences about what will run, with every deviation from the request."""
    hardware = plan.hardware
    lines = [f"suite {plan.entry.suite}, entry {plan.entry.name}"] if plan.entry else []
    lines += [
        f"{plan.case} with {plan.implementation.framework} {plan.implementation.version} on {hardware.nodes} x "
        f"{hardware.devices_per_node} {hardware.chip.name} ({hardware.description}), {plan.tuning.layout}"
    ]
    if plan.scale == "smoke":
        lines.append(f"smoke scale: {plan.scale_reason}")
        lines.append(f"the smoke scale has {plan.parameters:,} parameters and {plan.work.training.steps} steps")
    lines += [f"differs from the request: {d}" for d in plan.deviations]
    return [*lines, *(f"notice: {notice}" for notice in plan.notices)]


def progress_line(progress: StepProgress) -> str:
    left = words.NONE if progress.seconds_left is None else words.duration(progress.seconds_left)
    return (
        f"step {progress.step}/{progress.steps}  loss {words.format_number(progress.loss, 4)}  "
        f"{words.format_number(progress.tokens_per_second_per_device, 0)} tokens/s/device  "
        f"{words.gib(progress.memory_bytes)}  {left} left"
    )
