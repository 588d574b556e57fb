"""What a store says of a fault, word for word: tests/core/golden/store.txt holds each sentence once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from levelfield.errors import LevelfieldError
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.store import connections
from levelfield.store.address import parse_address, refuse_network_file_system
from levelfield.store.database import Store
from levelfield.store.record_lines import format_line, parse_line
from levelfield.store.upkeep import find_faults
from stored_records import changed

GOLDEN = Path(__file__).parents[1] / "golden" / "store.txt"
EVENT = StoreEvent(id="e1", kind="note", series="s", at="2026-01-02T03:04:05+00:00", who="ann", why="fan")


def message(fault: Callable[[], object]) -> str:
    with pytest.raises(LevelfieldError) as error:
        fault()
    return str(error.value)


def addresses(tmp_path: Path) -> Iterator[str]:
    for text in ("mysql://ann:word@host/db", "sqlite:///", "/dev/null", "none"):
        yield message(lambda text=text: parse_address(text))  # type: ignore[misc]
    (tmp_path / "mounts").write_text("server:/export / nfs4 rw 0 0\n")
    yield message(lambda: refuse_network_file_system(tmp_path / "r.sqlite", tmp_path / "mounts"))


def databases(tmp_path: Path, record: RunRecord) -> Iterator[str]:
    """Yield what is said of files that are no stores, and of stores that cannot be used."""
    notes, foreign, empty, old = (tmp_path / name for name in ("notes", "places", "empty", "old"))
    notes.write_text("shopping\n" * 100)
    yield message(lambda: Store.open(str(notes)))
    yield message(lambda: Store.open(str(notes / "below" / "r.sqlite")))
    yield message(lambda: Store.open(str(tmp_path / "absent"), read_only=True))
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    yield message(lambda: Store.open(str(foreign)))
    empty.touch()
    yield message(lambda: Store.open(str(empty), read_only=True))
    with Store.open(str(old)) as store:
        store.add([record, changed(record, 1)])
        store.add_event(EVENT)
        yield message(lambda: store.add_event(EVENT.model_copy(update={"why": "other"})))
        yield message(lambda: store.find("tiny_fake"))
        yield message(lambda: store.find("absent"))
    with Store.open(str(old), read_only=True) as reader:
        yield message(lambda: reader.add([record.model_copy(update={"run_id": "new"})]))
    with Store.open(str(old)) as store, closing(sqlite3.connect(old, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield message(lambda: store.add([record.model_copy(update={"run_id": "new"})]))
        other.execute("ROLLBACK")
        other.execute("UPDATE run SET mfu_megatron = 7 WHERE rowid = 1")
        yield from find_faults(store)
        other.execute("DELETE FROM raw WHERE rowid = 1")
        yield from find_faults(store)
        other.execute("DROP VIEW v_result")
        other.execute("ALTER TABLE run DROP COLUMN mfu_megatron")
    yield message(lambda: Store.open(str(old), read_only=True))
    with closing(sqlite3.connect(old, isolation_level=None)) as other:
        other.execute("UPDATE store_version SET version = '2.0.0'")
    yield message(lambda: Store.open(str(old)))


def lines(record: RunRecord) -> Iterator[str]:
    """Yield what is said of lines that are no records."""
    content = json.loads(format_line(record))
    changes = {"schema": "levelfield.record/2", "began": "yesterday", "window": [11, 99999999999], "reason": "a\0b"}
    planted = [json.dumps({**content, name: value}) for name, value in changes.items()]
    planted += [json.dumps({**content, "mfu_megatron": 0.25}), json.dumps({**content, "reason": "\ud800"}), "{", "[1]"]
    planted.append(format_line(record).replace('"verdict"', '"losses":[NaN],"verdict"', 1))
    for line in planted:
        yield message(lambda line=line: parse_line(line.encode(), "line 4"))  # type: ignore[misc]


def test_messages_are_those_of_the_golden_file(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
    sentences = [*addresses(tmp_path), *databases(tmp_path, record), *lines(record)]
    text = "\n".join([*sentences, ""]).replace(str(tmp_path), "FOLDER")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
