"""`store backup` and `store restore`: everything, to the byte of each row, and never over something."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.store.database import Store
from levelfield.store.schema import METADATA, SCHEMA_VERSION
from levelfield.store.upkeep import find_faults
from sqlalchemy import select
from stored_records import changed

Rows = dict[str, list[tuple[object, ...]]]


@pytest.fixture
def filled(record: RunRecord, tmp_path: Path) -> Path:
    """A store with every kind of row: sealed runs, one aside, an event, an expectation and a finding."""
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        store.add([changed(record, number) for number in range(5)])
        store.add([changed(record, 1, content="sha256:" + "f" * 64)])
        series = store.series()[0].digest
        store.add_event(StoreEvent(id="e", kind="note", series=series, at="2026-01-09", who="ann", why="a fan died"))
        store.add_expected_entries("2026-01-02", "smoke", {"tiny": series})
        store.add_finding("2026-01-02", {"word": "no change"})
    return path


def rows(path: Path) -> Rows:
    with Store.open(str(path), read_only=True) as store:
        assert not [fault for fault in find_faults(store) if "different contents" not in fault]
        return {
            table.name: store.read(lambda connection, t=table: [tuple(row) for row in connection.execute(select(t))])  # type: ignore[misc]
            for table in METADATA.sorted_tables
        }


def command(*words: object) -> int:
    return main(["store", *map(str, words)])


def test_a_restored_store_is_the_same_row_for_row(filled: Path, tmp_path: Path) -> None:
    before = rows(filled)
    assert all(before.values()), "the store has rows of every table"
    assert command("backup", tmp_path / "b.sqlite", "--store", filled) == 0
    assert sorted(path.name for path in tmp_path.iterdir() if "b.sqlite" in path.name) == ["b.sqlite"], "one file"
    assert command("restore", tmp_path / "b.sqlite", "--store", tmp_path / "new.sqlite") == 0
    assert rows(tmp_path / "new.sqlite") == before == rows(filled)


def test_a_backup_has_one_state_while_another_process_writes(filled: Path, record: RunRecord, tmp_path: Path) -> None:
    with Store.open(str(filled)) as store, store.engine.begin() as writer:  # an open transaction with a row
        writer.exec_driver_sql("INSERT INTO finding (night, document) VALUES ('x', '{}')")
        assert command("backup", tmp_path / "b.sqlite", "--store", filled) == 0
    assert command("restore", tmp_path / "b.sqlite", "--store", tmp_path / "new.sqlite") == 0
    assert len(rows(tmp_path / "new.sqlite")["finding"]) == 1 and len(rows(filled)["finding"]) == 2
    with Store.open(str(tmp_path / "new.sqlite")) as store:
        assert store.add([changed(record, 9)]).new_count == 1, "it goes on"


def no_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE store_version SET version = '0.9.0'")
        connection.commit()


@pytest.mark.parametrize(
    ("spoil", "tokens"),
    [
        (lambda path: path.unlink(), ["no such file"]),
        (lambda path: path.write_text("a log"), ["not a database"]),
        (lambda path: path.write_bytes(b""), ["no such table"]),
        (no_table, ["0.9.0", SCHEMA_VERSION]),
    ],
)
def test_what_is_no_backup_is_refused_and_the_store_stays_empty(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], tokens: list[str]
) -> None:
    backup, new = tmp_path / "b.sqlite", tmp_path / "new.sqlite"
    assert command("backup", backup, "--store", filled) == 0
    spoil(backup)
    assert command("restore", backup, "--store", new) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert str(backup) in message and all(token in message for token in tokens)
    assert not any(rows(new).values())


def test_nothing_that_is_there_is_replaced(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup, before = tmp_path / "b.sqlite", rows(filled)
    assert command("backup", backup, "--store", filled) == 0
    content = backup.read_bytes()
    assert command("backup", backup, "--store", filled) == 2 and backup.read_bytes() == content
    assert command("restore", backup, "--store", filled) == 2 and rows(filled) == before
    message = capsys.readouterr().err
    assert str(backup) in message and "5 run" in message
    assert command("backup", tmp_path / "absent" / "b.sqlite", "--store", filled) == 2
    assert "absent" in capsys.readouterr().err


def test_a_damaged_store_is_not_backed_up(filled: Path, tmp_path: Path) -> None:
    content = bytearray(filled.read_bytes())
    for page in range(3, len(content) // 8192):
        content[page * 8192 : page * 8192 + 64] = b"\xff" * 64
    filled.write_bytes(content)
    assert command("backup", tmp_path / "b.sqlite", "--store", filled) == 2
    assert {path.name for path in tmp_path.iterdir()} <= {filled.name, f"{filled.name}-wal", f"{filled.name}-shm"}


@pytest.mark.parametrize(("words", "program"), [(["backup"], "pg_dump"), (["restore"], "pg_restore")])
def test_postgresql_names_its_own_command(
    new_database: str, words: list[str], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.open(new_database).close()
    assert command(*words, "a b", "--store", new_database) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert program in message and "'a b'" in message and "psycopg:" not in message
