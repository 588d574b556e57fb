"""A dry run shows one rank in full, what differs in the others, and what a launcher sends, so that it can be read."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli import dry_run
from levelfield.cli.main import main
from levelfield.contracts.execution import Submission
from plans import PLUGINS

CONTENT: dict[str, Any] = {
    "node_rank": 1,
    "processes": [{"argv": ["p" * 90, "q" * 90], "environment": {"A": "\u00e4 \\n"}}] * 20,
    "files": {"job.json": '{\n  "a": 1\n}\n', "b.txt": "one\ntwo\n"},
    "removed": ["X"],
}


def ranks(text: str) -> list[str]:
    """The lines from the first rank on."""
    lines = text.splitlines()
    return lines[next(n for n, line in enumerate(lines) if line.startswith("rank ")) :]


@pytest.mark.parametrize(
    ("devices", "head"), [(1, None), (2, "rank 1       as rank 0, but for"), (4, "ranks 1-3    as rank 0, but for")]
)
def test_other_ranks_show_what_is_different(
    devices: int, head: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "4")
    assert main(["--case", f"tiny:fake:fake:1:{devices}", "--plugins", str(PLUGINS), "--dry-run"]) == 0
    text = capsys.readouterr().out
    lines = [line.strip() for line in ranks(text)]
    assert sum(line.startswith("WORLD_SIZE=") for line in lines) == 1 and (head is None or head in lines)
    assert [line for line in lines if line.startswith("RANK=")][1:] == {1: [], 2: ["RANK=1"], 4: ["RANK=1 ... 3"]}[
        devices
    ]
    names = [line.split()[0] for line in text.splitlines() if line[:1].strip()]
    assert names.count("environment") == names.count("variables") == 1


@pytest.mark.parametrize("case", ["llama3_8b:torch:A100:1:8", "gpt3_6.7B:paddle:A100:1:8", "gpt3_6.7B:torch:cpu:1:2"])
def test_no_two_rows_have_one_name(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Three rows were named `next best`."""
    assert main(["--case", case, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = Counter(line[:13].strip() for line in lines if line[:1].strip() and line[12:13] == " ")
    assert len(names) > 10 and [name for name, times in names.items() if times > 1] == []


def submission(stdin: str | None, common: str = "") -> list[str]:
    sent = (Submission("h1", ("ssh", "h1", "a b"), stdin=stdin),)
    request: Any = SimpleNamespace(submissions=sent, common_stdin=common)
    return list(dry_run._submission_lines(request))


@pytest.mark.parametrize("files", [True, False])
def test_the_shown_lines_are_the_bytes_that_are_sent(files: bool) -> None:
    content = CONTENT if files else {name: value for name, value in CONTENT.items() if name != "files"}
    sent = json.dumps(content) + "\n"
    command, head, *lines = submission(sent)
    assert command.endswith("ssh h1 'a b'") and head.startswith("standard input,")
    assert max(map(len, lines)) < 120 < len(sent)
    text, *parts = "\n".join([*lines, ""]).split("its file ")
    document = json.loads(text)
    for part in parts:
        name, _, file = part.partition(":\n")
        assert document["files"][name] == dry_run.FILE_PLACEHOLDER
        document["files"][name] = file
    assert json.dumps(document) + "\n" == sent


@pytest.mark.parametrize("text", ["#!/bin/sh", "[1, 2]", "{", ""])
def test_another_text_is_shown_as_it_is(text: str) -> None:
    assert submission(text)[1:] == [f"standard input: {text}"]


def test_the_part_of_all_nodes_is_shown_once_after_what_each_adds() -> None:
    own_line, common = '{"common": "-", "node_rank": 1}\n', json.dumps(CONTENT) + "\n"
    lines = submission(own_line, common)
    assert lines[1] == f"standard input: {own_line.strip()}" and lines[2].startswith("standard input of each node goes")
    assert lines[3:] == submission(common)[2:]


def test_a_command_without_standard_input_shows_none() -> None:
    assert len(submission(None)) == 1
