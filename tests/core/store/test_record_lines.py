"""An export is read back whole, and lines of anybody's making are refused with a sentence each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import DocumentError
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.store.record_lines import format_line, parse_line, read_lines

EVENT = StoreEvent(id="e", kind="note", series="s", at="2026-01-02T03:04:05+00:00", who="ann", why="fan ü\n")


def test_documents_come_back(record: RunRecord) -> None:
    for document in (record, EVENT):
        line = format_line(document)
        assert line.count("\n") == 1 and parse_line(line.encode(), "line") == document


def planted(record: RunRecord, path: tuple[str | int, ...], value: str) -> bytes:
    """The line of the record with another value at a path of keys, written as it stands."""
    content = json.loads(format_line(record))
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "PLANTED"
    return json.dumps(content).replace('"PLANTED"', value).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("mfu_megatron",), "NaN", "found NaN, expected a finite number"),
        (("mfu_megatron",), "1e999", "found 1e999, expected a finite number"),
        (("losses", 2), "-Infinity", "found -Infinity, expected a finite number"),
        (("mfu_megatron",), "0.25", "key 'mfu_megatron': found 0.25, expected "),
        (("result", "loss", "last"), '"x"', "its result: key 'loss.last': found 'x', expected a number"),
        (("result", "schema"), '"levelfield.result/0"', "its result: key 'schema': found 'levelfield.result/0'"),
        (("result", "loss", "last"), "1e400", "found 1e400, expected a finite number"),
        (("result", "loss", "last"), f"1{'0' * 310}.0", "expected a finite number"),
        (("result", "loss", "last"), "NaN", "found NaN"),
        (("result", "status"), '{"word":"valid","word":"failed"}', "found key 'word' twice"),
        (("word",), '"fine"', "key 'word': found 'fine', expected"),
        (("tokens_per_second_per_device",), '"fast"', "key 'tokens_per_second_per_device': found 'fast'"),
        (("step_seconds",), "[0.5,null]", "key 'step_seconds.1': found None"),
        (("series", "devices"), "null", "key 'series.devices': found None"),
        (
            ("schema",),
            '"levelfield.record/2"',
            "key 'schema': found 'levelfield.record/2', expected one of levelfield.re",
        ),
        (("schema",), "7", "key 'schema': found 7"),
        (("result",), "[]", "key 'result': found"),
        (("run_id",), f'"{"x" * 300}"', "key 'run_id'"),
        (("reason",), '"a\\u0000b"', "found a NUL character in a text, expected none"),
        (("result", "case"), '"a\\u0000b"', "found a NUL character in a text, expected none"),
        (("result", "case"), '"\\ud800"', "found a text that is not Unicode"),
        (("series", "nodes"), "3000000000", "key 'nodes': found 3000000000, expected less than 2,147,483,648"),
        (("window",), "[11, 99999999999]", "key 'window': found 99999999999"),
        (("began",), '"2026-01-02T03:04:05Z"', "key 'began': found '2026-01-02T03:04:05Z', expected UTC such as"),
        (("began",), '"2026-13-02T03:04:05+00:00"', "key 'began'"),
        (("began",), '"yesterday"', "key 'began'"),
    ],
)
def test_a_wrong_value_is_named(record: RunRecord, path: tuple[str | int, ...], value: str, message: str) -> None:
    with pytest.raises(DocumentError, match="line 4: ") as raised:
        parse_line(planted(record, path, value), "line 4")
    assert message in str(raised.value)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'"a"', b"\xff\xfe", b"[" * 100_000, b"null", b"{}"])
def test_what_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(DocumentError, match="a line: "):
        parse_line(line, "a line")


@pytest.mark.parametrize(("text", "fault"), [("\\u0000", "NUL"), ("\\ud800", "not Unicode")])
def test_a_statement_that_no_database_can_hold_is_named(text: str, fault: str) -> None:
    line = '{"schema":"levelfield.finding/1","night":"n","finding":{"detail":"TEXT"}}'.replace("TEXT", text)
    with pytest.raises(DocumentError, match=f"a line: .*{fault}"):
        parse_line(line.encode(), "a line")


def test_a_bad_line_leaves_the_others(tmp_path: Path, record: RunRecord) -> None:
    path = tmp_path / "export.jsonl"
    lines = [format_line(record), "{broken\n", "\n", format_line(EVENT), format_line(record)[:-30]]
    path.write_text("".join(lines))
    wrong: list[DocumentError] = []
    seen: list[tuple[int, int]] = []
    documents = list(read_lines(path, wrong.append, lambda done, whole: seen.append((done, whole))))
    assert documents == [record, EVENT]
    assert [str(error).split(":")[0] for error in wrong] == [f"{path} line 2", f"{path} line 5"]
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_line_without_end_is_not_read_whole(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.store.record_lines.MAX_LINE_BYTES", 1000)
    path = tmp_path / "export.jsonl"
    path.write_text("x" * 5000)
    with pytest.raises(DocumentError, match=r"line 1: .*1,000"):
        list(read_lines(path, print, lambda done, whole: None))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"absent\.jsonl: "):
        list(read_lines(tmp_path / "absent.jsonl", print, lambda done, whole: None))
