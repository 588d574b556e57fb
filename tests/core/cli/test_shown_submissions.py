"""A dry run shows what a launcher sends so that it can be read, and nothing of it is left out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli import dry_run
from levelfield.contracts.execution import Submission

CONTENT: dict[str, Any] = {
    "node_rank": 1,
    "processes": [{"argv": ["p" * 90, "q" * 90], "environment": {"A": "\u00e4 \\n"}}] * 20,
    "files": {"job.json": '{\n  "a": 1\n}\n', "b.txt": "one\ntwo\n"},
    "removed": ["X"],
}


def shown(stdin: str | None) -> list[str]:
    request: Any = SimpleNamespace(submissions=(Submission("h1", ("ssh", "h1", "a b"), stdin=stdin),))
    return list(dry_run._submissions(request))


@pytest.mark.parametrize("files", [True, False])
def test_the_shown_lines_are_the_bytes_that_are_sent(files: bool) -> None:
    content = CONTENT if files else {name: each for name, each in CONTENT.items() if name != "files"}
    sent = json.dumps(content) + "\n"
    command, head, *lines = shown(sent)
    assert (command, head) == ("submit h1: ssh h1 'a b'", "standard input, sent as JSON in one line:")
    assert max(map(len, lines)) < 120 < len(sent)
    text, *parts = "\n".join([*lines, ""]).split("its file ")
    found = json.loads(text)
    for part in parts:
        name, _, file = part.partition(":\n")
        assert found["files"][name] == dry_run.SHOWN_BELOW
        found["files"][name] = file
    assert json.dumps(found) + "\n" == sent


@pytest.mark.parametrize("text", ["#!/bin/sh", "[1, 2]", "{", ""])
def test_another_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text)[1:] == [f"standard input: {text}"]


def test_a_command_without_standard_input_shows_none() -> None:
    assert shown(None) == ["submit h1: ssh h1 'a b'"]
