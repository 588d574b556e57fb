"""Lines of a command that runs no training: commands to type, checks, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.report import words
from levelfield.report.escapes import printable
from levelfield.report.sheets import as_form, padded
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.report.sheets import Sheet
    from levelfield.testing.findings import CheckFinding

BLANK = "\u00a0"  # in a text: a blank where no line may break
_CONTINUED = " \\\n           "


def this_program() -> str:
    """Return the command of this program, from the current folder."""
    return f"python {short_path(checkout() / 'run_benchmarks.py')}"


def say_command(*parts: str) -> None:
    """Print a command to paste, with the shell's line continuation where it is too long for a line."""
    line = " ".join(parts)
    print(f"         {line if len(line) <= 80 - 9 else _CONTINUED.join(parts)}", flush=True)


def short_path(path: Path) -> str:
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


def print_checks(findings: Iterable[CheckFinding], width: int, quiet: bool) -> list[CheckFinding]:
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
