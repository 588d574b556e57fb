"""Rows of a plan rehearsed: their real code on pretended devices, by tests/gpu/rehearse.py of this checkout.

That script is a process of its own, because the code of the platform imports neither a framework nor the tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.errors import NotHere
from levelfield.predict.layout_search import LayoutEstimate

Say = Callable[[str], None]
TELL_SECONDS = 20.0  # between two signs of life
END_SECONDS = 20.0  # for an interrupted rehearsal to end its ranks and remove its folders
LONGEST = 200
# torch's sentence, of which more is advice
_SHORT_OF_MEMORY = re.compile(
    r"OutOfMemoryError: .*?Tried to allocate ([\d.]+ \w+).*?memory ([\d.]+ \w+) is allocated", re.DOTALL
)


@dataclass(frozen=True)
class RowRehearsal:
    """What the fullest device of a row showed. why: the reason why it did not run to its end; then figures are None.

    graph_breaks: of torch.compile, by their reasons; None where the row was not compiled. findings: what the script
    judges to be wrong, in sentences, such as a failed allocation or less communication than the layout needs.
    """

    seconds: float
    why: str | None = None
    planned_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    failed_allocations: int | None = None
    flushes: int | None = None
    ranks: int | None = None
    kernels_a_layer: float | None = None
    graph_breaks: Mapping[str, int] | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearser:
    """case: a whole case string with the chip's own name. further: options of the run for every row."""

    case: str
    further: Sequence[str] = ()
    script: Path = field(default_factory=lambda: checkout() / "tests" / "gpu" / "rehearse.py")

    def require(self) -> None:
        """Check that a rehearsal can begin here. Raises NotHere with what is missing and what to do."""
        if not self.script.is_file():
            raise NotHere(f"--rehearse: found no {self.script}; take a whole checkout of Levelfield")
        done = subprocess.run(self._argv("--check"), capture_output=True, text=True)
        if done.returncode:
            raise NotHere(f"--rehearse: {_sentence(done.stderr)}")

    def rehearse(self, row: LayoutEstimate, say: Say) -> RowRehearsal:
        """Run the ranks of one row that tell most; say from time to time that they run."""
        began = time.monotonic()
        code, out, err = _finished(self._argv("--json", *options_of(row), *self.further), say)
        seconds = time.monotonic() - began
        try:
            content = json.loads(out)
        except ValueError:
            return RowRehearsal(seconds, why=_line(_sentence(err)) or f"the rehearsal ended with code {code}")
        return read_report(content, seconds)

    def _argv(self, *options: str) -> list[str]:
        return [sys.executable, str(self.script), self.case, *options]


def options_of(row: LayoutEstimate) -> list[str]:
    """Return the options with which a run takes exactly this row."""
    tuning = row.tuning
    options = ["--scale", "full", "--layout", str(row.layout), "--micro-batch", str(tuning.micro_batch)]
    options += ["--recompute", tuning.recompute]
    options += ["--recompute-layers", str(tuning.recompute_layers)] if tuning.recompute_layers else []
    return options + (["--virtual-pipeline", str(tuning.virtual_pipeline)] if tuning.virtual_pipeline > 1 else [])


def read_report(content: Mapping[str, Any], seconds: float) -> RowRehearsal:
    """Return the figures of what `rehearse.py --json` printed: of all ranks and steps the largest."""
    ranks = content["ranks"]
    for rank in ranks:
        if rank.get("error") or rank["exit_code"] or not rank["steps"]:
            return RowRehearsal(seconds, why=_failure(rank), planned_bytes=content["planned_bytes"])
    steps = [step for rank in ranks for step in rank["steps"]]
    last = [rank["steps"][-1] for rank in ranks]
    return RowRehearsal(
        seconds,
        planned_bytes=content["planned_bytes"],
        allocated_bytes=max(step["allocated_peak_bytes"] for step in steps),
        reserved_bytes=max(step["reserved_peak_bytes"] for step in steps),
        failed_allocations=sum(step["failed_allocations"] for step in steps),
        flushes=max(step["allocator_retries"] for step in last),
        ranks=len(ranks),
        kernels_a_layer=max(step["kernels_a_layer"] or 0 for step in last),
        graph_breaks=_graph_breaks(ranks),
        findings=tuple(content["findings"]),
    )


def _graph_breaks(ranks: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    if not any("compiled_steps" in rank for rank in ranks):
        return None
    found = Counter[str]()
    for rank in ranks:
        of_rank = Counter[str]()
        for step in rank["compiled_steps"]:
            of_rank.update(step["graph_breaks"])
        found |= of_rank  # the larger number of each
    return dict(found)


def _failure(rank: Mapping[str, Any]) -> str:
    """Return in one line why a rank did not finish: its error, or what the stand-in said when it ended it."""
    said = [line.strip() for line in (rank.get("printed") or "").splitlines() if line.startswith("stand-in")]
    why = rank.get("error") or (said[0] if said else f"ended with code {rank['exit_code']}")
    if short := _SHORT_OF_MEMORY.search(why):
        why = f"out of memory: {short[2]} allocated, {short[1]} more asked for"
    return f"rank {rank['rank']}: {_line(why)}"


def _sentence(printed: str) -> str:
    """Return the last line that the script said, without its name."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("rehearse: ")] or lines[-1:]
    return told[-1].removeprefix("rehearse: ") if told else ""


def _line(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 4]} ..."


def _finished(argv: Sequence[str], say: Say) -> tuple[int, str, str]:
    """Run the script to its end. An interrupt of this process ends it with all that it has started."""
    began = time.monotonic()
    # A session of its own: Ctrl-C reaches this process alone, so that the script's end is always awaited.
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while True:
            try:
                out, err = process.communicate(timeout=TELL_SECONDS)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                say(f"{time.monotonic() - began:.0f} s so far")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
