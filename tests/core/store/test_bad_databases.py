"""A store that is damaged, missing, locked, full, too new or not to be written gives a sentence, never a traceback."""

from __future__ import annotations

import builtins
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord
from levelfield.store import connections
from levelfield.store.database import Store
from levelfield.store.upkeep import find_faults
from sqlalchemy import event
from stored_records import changed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, record: RunRecord) -> Path:
    """A store with fifty runs."""
    file = tmp_path_factory.mktemp("made") / "results.sqlite"
    with Store.open(str(file)) as store:
        store.add(changed(record, number) for number in range(50))
    return file


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be broken."""
    return Path(shutil.copy(made, tmp_path))


@pytest.mark.parametrize("name", ["a?b.sqlite", "a#b.sqlite", "a%41.sqlite", "a&mode=ro.sqlite", "é ö.sqlite"])
def test_a_store_is_the_file_of_its_name_and_no_other(name: str, tmp_path: Path) -> None:
    """In an address each of these would mean something, and another file would be opened, and made a store."""
    with Store.open(str(tmp_path / name)):
        pass
    with Store.open(str(tmp_path / name), read_only=True) as store:
        assert store.run_ids() == []
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {name}


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.sqlite"
    file.write_text("shopping\n" * 100)
    with pytest.raises(UsageError, match=rf"{file} is no"):
        Store.open(str(file))
    assert file.read_text() == "shopping\n" * 100


FOREIGN = {
    "another program's": "CREATE TABLE bookmarks (url TEXT)",
    "another program's with alembic": "CREATE TABLE alembic_version (version_num TEXT); CREATE TABLE experiments (a)",
    "of a program with a mark": "PRAGMA application_id = 252006674",
    "with one name of ours": "CREATE TABLE run (distance REAL)",
}


@pytest.mark.parametrize("made", FOREIGN)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, made: str, read_only: bool) -> None:
    """Also its kind of log: a write-ahead log would make two files beside it."""
    file = tmp_path / "places.sqlite"
    connection = sqlite3.connect(file)
    connection.executescript(FOREIGN[made])
    connection.close()
    before = file.read_bytes()
    with pytest.raises(UsageError, match="another program"):
        Store.open(str(file), read_only=read_only)
    assert file.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["places.sqlite"]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "new.sqlite").touch()
    with Store.open(str(tmp_path / "new.sqlite")) as store:
        assert store.run_ids() == []


def test_damaged_pages_are_found_by_check_and_named_by_a_query(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle:] = b"\x07" * (len(content) - middle)
    path.write_bytes(content)
    message = r"results.sqlite is damaged: .*malformed.*`store import` makes it again"
    with Store.open(str(path), read_only=True) as store:
        with pytest.raises(UsageError, match=message):
            list(store.records())
        with pytest.raises(UsageError, match=message):
            assert find_faults(store) == []
    assert main(["store", "check", "--store", str(path)]) == 4, "as of a row that is not what its digest says"
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert main(["store", "info", "--store", str(path.with_name("absent.sqlite"))]) == 2


def test_a_missing_file_is_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.sqlite: .*`store import"):
        Store.open(str(tmp_path / "absent.sqlite"), read_only=True)
    assert not (tmp_path / "absent.sqlite").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{tmp_path / 'file' / 'below'} cannot"):
        Store.open(str(tmp_path / "file" / "below" / "r.sqlite"))


def test_a_store_that_may_only_be_read_refuses_changes(path: Path, record: RunRecord) -> None:
    with Store.open(str(path), read_only=True) as store:
        assert len(store.run_ids()) == 50
        with pytest.raises(UsageError, match="readonly database"):
            store.add([record])


def test_a_read_only_folder_is_read_without_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: False)
    with Store.open(str(path), read_only=True) as store:
        assert len(list(store.records())) == 50
    assert sorted(p.name for p in path.parent.iterdir()) == ["results.sqlite"]


def test_a_locked_store_says_so_and_goes_on_later(
    path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store.open(str(path)) as store:
        assert len(store.run_ids()) == 50  # reading goes on
        with pytest.raises(UsageError, match=f"{path} is locked"):
            store.add([record])
        other.execute("ROLLBACK")
        assert store.add([record]).new_count == 1
    other.close()


def test_a_full_disk_stores_nothing_of_the_batch(path: Path, record: RunRecord) -> None:
    with Store.open(str(path)) as store:

        def limit(connection: sqlite3.Connection, _: object) -> None:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={pages}")

        store.engine.dispose()
        event.listen(store.engine, "connect", limit)
        more = [changed(record, number, content="other") for number in range(100, 300)]
        with pytest.raises(UsageError, match=r"no space"):
            store.add(more)
    with Store.open(str(path)) as store:
        assert len(store.run_ids()) == 50 and find_faults(store) == []
        assert store.add(more).new_count == 200


def test_postgresql_without_its_client_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: object, **more: object) -> object:
        if name.split(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", lacking)
    monkeypatch.delitem(sys.modules, "psycopg", raising=False)
    with pytest.raises(UsageError, match=r"'psycopg\[binary\]==3"):
        Store.open("postgresql://ann@host/db")


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="be reached") as raised:
        Store.open(f"postgresql://ann:secret@/db?host={tmp_path}")
    assert "secret" not in str(raised.value) and "Traceback" not in str(raised.value)


def test_a_database_that_is_not_there_is_named(postgresql: str) -> None:
    with pytest.raises(UsageError, match='database "absent"'):
        Store.open(postgresql.replace("/postgres?", "/absent?"))


def test_a_store_of_postgresql_that_may_only_be_read_refuses_changes(new_database: str, record: RunRecord) -> None:
    Store.open(new_database).close()
    refused = pytest.raises(UsageError, match="read-only transaction")
    with Store.open(new_database, read_only=True) as store, refused:
        store.add([record])


def test_a_process_that_is_killed_leaves_a_whole_store(path: Path, record: RunRecord) -> None:
    """In the middle of a transaction: nothing of it is there, and everything before is."""
    script = f"""
import os, signal, sqlite3
c = sqlite3.connect({str(path)!r}, isolation_level=None)
c.execute("PRAGMA cache_size=1")
c.execute("BEGIN IMMEDIATE")
c.execute("DELETE FROM raw")
c.execute("DELETE FROM run")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    with Store.open(str(path)) as store:
        assert len(list(store.records())) == 50 and find_faults(store) == []
