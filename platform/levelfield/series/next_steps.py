"""What a reader can do about a finding: a sentence, and commands that work as they are printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from levelfield.report.escapes import one_line
from levelfield.report.words import wrapped
from levelfield.series.findings import Finding
from levelfield.series.ticket import Ticket
from levelfield.specs.short_names import short_digest

PROGRAM = ("python", "run_benchmarks.py")
_LINE_CONTINUATION = " \\\n        "
_MAX_LINE_CHARACTERS = 71  # of a command, without the indent


class NextStep(NamedTuple):
    """What to do, as a sentence without a full stop, and the commands for it."""

    text: str
    commands: tuple[tuple[str, ...], ...] = ()  # each as its arguments


def next_step(finding: Finding, ticket: Ticket | None, store: str | None = None) -> NextStep | None:
    """Return what to do about a finding; None where its detail or its status says it.

    store: the file that the commands have to name.
    """
    if not finding.series:
        return None
    options = ("--reason", "REASON", *(("--store", store) if store else ()))
    accept = (*PROGRAM, "nightly", "accept", short_digest(finding.series), *options)
    accept_step = (*PROGRAM, "nightly", "accept-step", short_digest(finding.series), *options)
    blamed = ticket.blamed if ticket else None
    is_shown = bool(finding.pairs or finding.named)  # else `nightly accept` needs three nights
    later = "with `nightly accept` after three such nights"
    or_accept = "or accept the change" if is_shown else f"or accept the change {later}"
    accepts = (accept,) if is_shown else ()
    if finding.word == "training differs":
        return NextStep(f"revert {blamed.commit[:12]}") if blamed else None
    if finding.word == "regression":
        if blamed:
            return NextStep(f"revert {blamed.commit[:12]}, {or_accept}", accepts)
        if ticket and ticket.command:
            return NextStep(f"find the commit and revert it, {or_accept}", (ticket.command, *accepts))
        return NextStep(f"undo the change, {or_accept}", accepts)
    if finding.word == "environment step":
        return NextStep("undo the change of conditions, or accept it", (accept_step,))
    if finding.word == "improvement":
        if finding.fields:
            return NextStep("accept the gain, so that its loss is found", (accept_step,))
        return NextStep(f"accept the gain{'' if is_shown else f' {later}'}, so that its loss is found", accepts)
    return None


def next_lines(step: NextStep) -> Iterator[str]:
    """Yield lines of at most 80 columns for a terminal or a mail; only a word of a command is longer."""
    yield wrapped(f"  next: {step.text}{':' if step.commands else ''}", 4)
    for command in step.commands:
        yield f"    {command_text(command)}"


def next_markdown(step: NextStep) -> Iterator[str]:
    """Yield the same lines as Markdown, with the commands as they are typed."""
    yield f"- next: {step.text}"
    for command in step.commands:
        yield from ("", *(f"      {line}" for line in command_text(command).splitlines()))


def command_text(command: Sequence[str]) -> str:
    """Return a command on lines that a shell takes as one."""
    lines, words = [""], [shlex.quote(one_line(word)) for word in command]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _MAX_LINE_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return _LINE_CONTINUATION.join(lines)
