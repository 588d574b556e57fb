"""Output for people: sentences on stderr during a run, the result on stdout.

Without a terminal no line is redrawn: a log gets the line of a step every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.compare import scaling
from levelfield.compare.scaling import Scaling
from levelfield.report import repeats, suites, tables, words
from levelfield.report.escapes import one_line
from levelfield.report.sheets import as_text
from levelfield.run.runner import Listener
from levelfield.run.scheduler import Job
from levelfield.rundir.follower import Progress
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result

LOG_SECONDS = 5.0


class Terminal:
    """Progress and results. With `quiet` only errors go to stderr. recorded: called with each run that has a result."""

    def __init__(self, quiet: bool, recorded: Callable[[RunPaths], None] = lambda paths: None) -> None:
        self._quiet, self._recorded = quiet, recorded
        self._redraws = sys.stderr.isatty() and not quiet
        self._open_line = False
        self._last_log = 0.0

    def listener(self) -> Listener:
        return Listener(say=self.say, step=self.step, recorded=self._recorded)

    def say(self, text: str) -> None:
        if not self._quiet:
            self._end_line()
            print(words.wrapped(f"levelfield: {text}", 12), file=sys.stderr, flush=True)

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
            self._redraw(f"{progress_line(progress)[: words.WIDTH - 1]:<{words.WIDTH - 1}}")
        elif last or progress.step == 1 or time.monotonic() - self._last_log > LOG_SECONDS:
            print(progress_line(progress), file=sys.stderr, flush=True)
            self._last_log = time.monotonic()

    def finished(self, result: Result, runs: Path) -> None:
        self._end_line()
        if result.status.evidence:
            self.say(f"{words.status(result)}: {result.status.evidence}")

    def summary(self, results: Sequence[Result], runs: Path) -> None:
        """Print the results: one run in full, several side by side, suites by entry, and the run directories."""
        alone = [result for result in results if result.entry is None]
        if len(alone) == 1:
            print("\n".join(result_lines(alone[0])))
        elif alone:
            print(tables.as_text(alone), end="")
        for listed in suites.by_suite(results):
            print("\n".join(suites.ran(listed)))
        if said := repeats.as_lines(results):
            print("\n".join([*said, ""]))
        for result in results:
            print(f"run      {one_line(shown(runs / result.run_id))}")

    def scaled(self, found: Sequence[Scaling | str]) -> None:
        """Print the table of each series, or why there is none."""
        for each in found:
            if isinstance(each, str):
                self.say(each)
            else:
                print("\n" + as_text(scaling.sheets(each)), end="")

    @contextmanager
    def bytes_progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Return a callback that shows progress. Its arguments are the bytes done and all bytes."""
        state = {"shown": -1}

        def show(done: int, whole: int) -> None:
            percent = 100 * done // max(1, whole)
            if self._redraws and percent != state["shown"]:
                self._redraw(f"levelfield: {what}: {percent} %")
                state["shown"] = percent

        yield show
        self._end_line()

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


def announcement(plan: Plan) -> list[str]:
    """Return sentences about what will run, with every deviation from the request."""
    hardware = plan.hardware
    lines = [f"suite {plan.entry.suite}, entry {plan.entry.name}"] if plan.entry else []
    lines += [
        f"{plan.case} with {plan.implementation.framework} {plan.implementation.version} on {hardware.nodes} x "
        f"{hardware.devices_per_node} {hardware.chip.name} ({hardware.description}), {plan.tuning.layout}",
    ]
    if plan.scale == "smoke":
        lines.append(f"smoke scale: {plan.scale_reason}")
        lines.append(f"the smoke scale has {plan.parameters:,} parameters and {plan.work.training.steps} steps")
    lines += [f"differs from what was asked for: {d}" for d in plan.deviations]
    return [*lines, *(f"notice: {notice}" for notice in plan.notices)]


def progress_line(progress: Progress) -> str:
    left = words.NONE if progress.seconds_left is None else duration(progress.seconds_left)
    return (
        f"step {progress.step}/{progress.steps}  loss {words.number(progress.loss, 4)}  "
        f"{words.number(progress.tokens_per_second_per_device, 0)} tokens/s/device  "
        f"{words.gib(progress.memory_bytes)}  {left} left"
    )


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def result_lines(result: Result) -> list[str]:
    """Return one result in lines of at most 80 columns."""
    name, memory = words.worst_memory(result)
    throughput, mfu = result.throughput, words.utilisation(result, "palm")
    lines = [
        f"{result.case} ({result.scale})  {result.framework} {result.framework_version}  {result.layout}",
        f"result   {words.status(result)}",
        *(f"         {reason}" for reason in result.status.reasons),
    ]
    if throughput:
        step = throughput.step_seconds
        lines.append(f"speed    {words.number(throughput.tokens_per_second_per_device)} tokens/s/device")
        lines.append(f"step     {step.median * 1000:,.1f} ms median, {step.p90 * 1000:,.1f} ms p90, {step.steps} steps")
        lines += [f"         flagged: {flag}" for flag in step.flags]
    if result.disturbance:
        lines += [f"         flagged: {flag}" for flag in result.disturbance.flags]
    lines += [f"waited   {sentence}" for sentence in words.pace_lines(result)]
    beyond = [each for each in result.utilisation if each.is_above_peak and each != mfu]
    if mfu:
        peak = f"of {mfu.peak_tflops:.4g} TFLOP/s" if mfu.peak_tflops else ""
        lines.append(f"MFU      {words.percent(mfu)} {mfu.formula} {peak}".rstrip())
        lines += [f"         {mfu.peak_source or mfu.reason}"]
    lines += [f"         {each.kind} {each.formula}: {each.reason}" for each in beyond]
    lines += [f"memory   {words.gib(memory)} ({name})", f"         expected {words.expectation(result)}"]
    lines += [f"         remark: {remark}" for remark in words.memory_remarks(result)]
    first, last = words.number(result.loss.first, 4), words.number(result.loss.tail_mean, 4)
    lines.append(f"loss     {first} -> {last}, mean of the last steps")
    lines += [f"experts  {sentence}" for sentence in words.expert_lines(result)]
    lines += words.node_lines(result)
    lines += [f"before   {result.preflight}"] if result.preflight else []
    lines += [f"warning  {warning}" for warning in result.warnings]
    lines.append(f"verdict  {result.alignment.verdict}: {words.reason_without_limits(result.alignment)}")
    lines += [f"limits   {result.alignment.limits}"] if result.alignment.limits else []
    if result.alignment.verdict == "different":
        lines.append(f"         next: `align diagnose {result.run_id}` names the first step and tensor that differ")
    return [words.wrapped(line, 9) for line in lines]


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
