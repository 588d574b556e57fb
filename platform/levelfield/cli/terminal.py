"""Output for people: sentences on stderr during a run, the result on stdout, on streams that nothing can harm.

Without a terminal no line is redrawn: a log gets the line of a step every few seconds. A closed pipe, a full disk or a
closed stream ends no command. Control characters of a text reach no terminal.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.checkout import checkout
from levelfield.report import words
from levelfield.report.escapes import one_line, printable
from levelfield.report.sheets import as_form, as_text, padded
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.compare.scaling import Scaling
    from levelfield.corpus.facts import CorpusFacts
    from levelfield.report.sheets import Sheet
    from levelfield.run.runner import Listener
    from levelfield.run.scheduler import Job
    from levelfield.rundir.follower import Progress
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.plan import Plan
    from levelfield.specs.result import Result
    from levelfield.testing.findings import CheckFinding

LOG_SECONDS = 5.0
BLANK = "\u00a0"  # in a text: a blank where no line may break
HARMLESS = (errno.EPIPE, errno.EBADF)  # a reader such as `head` has left, or nobody wants the output


class Terminal:
    """Progress and results. With `quiet` only errors go to stderr. recorded: called with each run that has a result."""

    def __init__(self, quiet: bool = False, recorded: Callable[[RunPaths], None] = lambda paths: None) -> None:
        self._quiet, self._recorded = quiet, recorded
        self._redraws = sys.stderr.isatty() and not quiet
        self._open_line = False
        self._last_log = 0.0

    def listener(self) -> Listener:
        from levelfield.run.runner import Listener

        return Listener(say=self.say, step=self.step, recorded=self._recorded)

    def say(self, text: str) -> None:
        if not self._quiet:
            self._end_line()
            print(words.wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say what a person has to know also when the command is over."""
        self.say(text)

    def announced(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Return the same jobs, and print for each what will run and why at this scale."""
        for job in jobs:
            for sentence in announcement(job.plan):
                self.say(sentence)
            yield job

    def step(self, plan: Plan, progress: Progress) -> None:
        """Show a finished step: a redrawn line on a terminal, a line every few seconds elsewhere."""
        if self._quiet:
            return
        last = progress.step == progress.steps
        if self._redraws:
            self._redraw(progress_line(progress)[: words.WIDTH - 1].ljust(words.WIDTH - 1))
        elif last or progress.step == 1 or time.monotonic() - self._last_log > LOG_SECONDS:
            print(progress_line(progress), file=sys.stderr, flush=True)
            self._last_log = time.monotonic()

    def finished(self, result: Result) -> None:
        self._end_line()
        if result.status.evidence:
            self.say(f"{words.status(result)}: {result.status.evidence}")

    def summary(self, results: Sequence[Result], runs: Path) -> None:
        """Print the results: one run in full, several side by side, suites by entry, and the run directories."""
        from levelfield.report import repeats, tables
        from levelfield.report.one_run import result_lines

        alone = [result for result in results if result.entry is None]
        if len(alone) == 1:
            print("\n".join(result_lines(alone[0])))
        elif alone:
            print(tables.as_text(alone), end="")
        for listed in tables.by_suite(results):
            print("\n".join(tables.ran(listed)))
        if said := repeats.as_lines(results, plan_digests(results, runs)):
            print("\n".join([*said, ""]))
        for result in results:
            print(f"run      {one_line(shown(runs / result.run_id))}")

    def scaled(self, found: Sequence[Scaling | str]) -> None:
        """Print the table of each series, or why there is none."""
        from levelfield.compare import scaling

        for each in found:
            if isinstance(each, str):
                self.say(each)
            else:
                print("\n" + as_text(scaling.sheets(each)), end="")

    @contextmanager
    def bytes_progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Return a callback that shows progress. Its arguments are the bytes done and all bytes."""
        last = -1

        def show(done: int, whole: int) -> None:
            nonlocal last
            percent = 100 * done // max(1, whole)
            if self._redraws and percent != last:
                self._redraw(f"levelfield: {what}: {percent} %")
                last = percent

        try:
            yield show
        finally:
            self._end_line()

    def checked_corpus(self, prefix: str) -> CorpusFacts:
        """Return what a corpus is, after all of it was read."""
        from levelfield.corpus.integrity import check

        with self.bytes_progress(f"checking {prefix}") as progress:
            return check(prefix, progress=progress)

    def _redraw(self, line: str) -> None:
        """Write the line over the last one. The carriage return is a text of its own, which the streams let through."""
        for text in ("\r", line):
            sys.stderr.write(text)
        sys.stderr.flush()
        self._open_line = True

    def _end_line(self) -> None:
        if self._open_line:
            print(file=sys.stderr)
            self._open_line = False


def plan_digests(results: Sequence[Result], runs: Path) -> list[str | None]:
    """Return what the plan of each run in this folder shares with those of its repeats; None without a plan."""
    from levelfield.errors import LevelfieldError
    from levelfield.rundir.directory import read_plan
    from levelfield.specs.paths import RunPaths

    found: list[str | None] = []
    for result in results:
        try:
            found.append(read_plan(RunPaths(runs / result.run_id)).repeats_digest)
        except LevelfieldError:
            found.append(None)
    return found


class NoteTaker(Terminal):
    """Without progress, for a mail that is read in the morning: notes are kept, to be printed at the end."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(one_line(text))

    def finished(self, result: Result) -> None:
        if result.status.evidence:
            self.note(f"{words.status(result)}: {result.status.evidence}")


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
    lines += [f"differs from what was asked for: {d}" for d in plan.deviations]
    return [*lines, *(f"notice: {notice}" for notice in plan.notices)]


def progress_line(progress: Progress) -> str:
    left = words.NONE if progress.seconds_left is None else words.duration(progress.seconds_left)
    return (
        f"step {progress.step}/{progress.steps}  loss {words.number(progress.loss, 4)}  "
        f"{words.number(progress.tokens_per_second_per_device, 0)} tokens/s/device  "
        f"{words.gib(progress.memory_bytes)}  {left} left"
    )


_CONTINUED = " \\\n           "


def this_program() -> str:
    """Return the command of this program, from the current folder."""
    return f"python {shown(checkout() / 'run_benchmarks.py')}"


def say_command(*parts: str) -> None:
    """Print a command to paste, with the shell's line continuation where it is too long for a line."""
    line = " ".join(parts)
    print(f"         {line if len(line) <= 80 - 9 else _CONTINUED.join(parts)}", flush=True)


def shown(path: Path) -> str:
    """Return the path relative to the current folder where it is below it, else the whole path."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):  # OSError: the current folder was removed
        return str(path)


def print_compared(form: str, sheets: Iterable[Sheet], values: Mapping[str, object]) -> None:
    """Print tables as text or Markdown, or their values as JSON."""
    if form == "json":
        print(json_text(values))
    else:
        print(as_form(form, sheets), end="")


_STATUS = {"ok": "ok", "warns": "WARNS", "missing": "missing", "fails": "FAILS", "not applicable": "n/a"}


def say(text: str, indent: int = 9) -> None:
    """Print a text that goes on below itself."""
    print(words.wrapped(text, indent).replace(BLANK, " "), flush=True)


def say_check(finding: CheckFinding, width: int) -> None:
    indent = 8 + 1 + width + 1
    say(padded((_STATUS[finding.status], finding.check, printable(finding.says)), (8, width), " "), indent)
    if finding.do:
        say(padded(("", f"> {printable(finding.do)}"), (indent - 3,), " "), indent)


def said_checks(findings: Iterable[CheckFinding], width: int, quiet: bool) -> list[CheckFinding]:
    """Return the findings, and print each as it comes unless `quiet`."""
    found = []
    for finding in findings:
        found.append(finding)
        if not quiet:
            say_check(finding, width)
    return found


def check_values(found: Sequence[CheckFinding]) -> dict[str, object]:
    """Return whether all passed, and each finding without its rows, for JSON."""
    checks = [{key: value for key, value in asdict(each).items() if key != "rows"} for each in found]
    return {"passes": all(each.is_good for each in found), "checks": checks}


def say_checked(name: str, found: Sequence[CheckFinding]) -> None:
    if bad := [finding.check for finding in found if not finding.is_good]:
        say(f"{name}: {len(bad)} of {len(found)} checks did not pass: {', '.join(bad)}")
    else:
        say(f"{name}: all {sum(each.status == 'ok' for each in found)} checks that apply passed")


class Streams:
    """The standard streams of this process, protected from here on. Make it once, before anything is printed.

    run_benchmarks.py has put the null device in place of a closed one.
    """

    def __init__(self) -> None:
        self._output = _DroppingFile(1)
        sys.stdout = _text(self._output, line_buffering=os.isatty(1))
        sys.stderr = _text(_DroppingFile(2), line_buffering=True)

    def lost(self) -> str | None:
        """Return why standard output was not written, or None. A closed pipe loses nothing that somebody wants."""
        sys.stdout.flush()
        failure = self._output.failure
        if failure is None or failure.errno in HARMLESS:
            return None
        return f"standard output could not be written: {failure.strerror}"


def _text(file: _DroppingFile, line_buffering: bool) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__ or sys.__stderr__, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(file)
    return _PrintableText(buffered, encoding, errors="backslashreplace", line_buffering=line_buffering)


class _DroppingFile(io.RawIOBase):
    """A descriptor that drops what it cannot write. failure: the first error, None without one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write the bytes and return their number, also when they were dropped."""
        while self.failure is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.failure = error
        return len(data)


class _PrintableText(io.TextIOWrapper):
    """A text stream that writes control characters as `\\u001b`. Only a carriage return that stands alone is sent.

    The line of progress is redrawn by it. A text from elsewhere is always part of a longer one.
    """

    def write(self, text: str) -> int:
        super().write(text if text == "\r" else printable(text))
        return len(text)
