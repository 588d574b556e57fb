"""What `plan` prints, and its words without the figures that the planner's constants give."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from levelfield.cli.main import main

# A row of a table: behind its number, its indent or its chip comes a layout or a figure.
ROW = re.compile(r" *\d+ +(DP|[\d.])| +DP\d| *eq$|\S+ +(DP\d|none fits)|[\w-]+ +[\d.,]+ +[\d.,-]+")
FIGURES = (
    re.compile(r"[\d,]+ of [\d,]+(?= layouts fit)"),
    re.compile(r"(?<![\w.])\d+(?:,\d{3})+(?:\.\d+)?|(?<![\w.])\d+\.\d+(?:e[+-]\d+)?"),
    re.compile(r"(?:(?<=compute )|(?<=step of ))\d+"),
)


def plan_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def plan_values(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    values = json.loads(plan_output(capsys, *arguments, "--json"))
    assert isinstance(values, dict)
    return values


def plan_refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def plan_words(text: str) -> str:
    """Return each sentence in one line, without rows, and with # for what the planner computes."""
    lines, before = [""], ""
    for line in text.splitlines():
        is_wrapped = before and line.strip() and len(before) + 1 + len(line.split()[0]) > 80
        before = line
        if is_wrapped:
            lines[-1] += f" {line.strip()}"
        elif line.strip() and not ROW.match(line):
            lines.append(line.strip())
    for figure in FIGURES:
        lines = [figure.sub("#", line) for line in lines]
    return "\n".join(lines[1:])
