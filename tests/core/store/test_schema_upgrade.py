"""Stores of every released schema are read by today's code, on both databases; a newer one is refused."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord
from levelfield.store import schema
from levelfield.store.database import Store
from levelfield.store.schema import METADATA, MIGRATIONS, REVISION
from levelfield.store.upkeep import counts, faults

STORED = Path(__file__).parents[1] / "data" / "stores"
LATER = '''"""A step of a later version."""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0005", "0004"
def upgrade():
    op.add_column("run", sa.Column("later", sa.Integer))
    {more}
'''


def statements(store: Store, lines: list[str]) -> None:
    def run(connection):
        for line in lines:
            connection.exec_driver_sql(line)

    store.written(run)


def test_the_migrations_make_the_tables_that_the_code_uses(url: str) -> None:
    with Store.open(url) as store:
        with store.engine.connect() as connection:
            found = compare_metadata(MigrationContext.configure(connection), METADATA)
        assert found == []


def test_the_newest_migration_is_the_one_that_the_code_expects() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


def test_there_is_a_stored_example_of_every_released_schema() -> None:
    released = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("0*.py"))
    assert [path.stem for path in sorted(STORED.glob("*.sql"))] == released


@pytest.mark.parametrize("version", [path.stem for path in sorted(STORED.glob("*.sql"))])
def test_a_store_of_a_released_schema_is_read(version: str, tmp_path: Path) -> None:
    file = tmp_path / "old.sqlite"
    connection = sqlite3.connect(file)
    connection.executescript((STORED / f"{version}.sql").read_text())
    connection.close()
    with Store.open(str(file)) as store:
        lines = (STORED / f"{version}.jsonl").read_text().splitlines()
        assert list(store.records()) == [RunRecord.model_validate_json(line) for line in lines]
        assert faults(store) == []
        assert {record.series.graph for record in store.records()} == {False}  # stored before there was this field
        assert [event.id for event in store.events()] == ["accepted"]
        assert store.expected("2026-01-02") == {"nightly/tiny": None}


def test_a_newer_store_is_refused_and_left_alone(url: str) -> None:
    with Store.open(url) as store:
        statements(store, ["UPDATE alembic_version SET version_num = '9999'"])
    for read_only in (True, False):
        with pytest.raises(UsageError, match="has schema 9999, and this version of Levelfield knows 0004; use a newer"):
            Store.open(url, read_only)


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version of the code with one more step; the step's file is returned."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "REVISION", "0005")
    step = folder / "versions" / "0005_later.py"
    step.write_text(LATER.format(more="pass"))
    return step


def test_an_older_store_is_upgraded_with_its_rows(url: str, record: RunRecord, monkeypatch, request) -> None:
    with Store.open(url) as store:
        store.add([record])
    request.getfixturevalue("later")
    with pytest.raises(UsageError, match="has schema 0004, expected schema 0005; `store info` brings it up to date"):
        Store.open(url, read_only=True)
    with Store.open(url) as store:
        assert list(store.records()) == [record]
        statements(store, ["UPDATE run SET later = 1"])
        assert store.read(lambda c: c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()) == "0005"


def test_an_upgrade_that_fails_changes_nothing(url: str, record: RunRecord, request) -> None:
    with Store.open(url) as store:
        store.add([record])
    later = request.getfixturevalue("later")
    later.write_text(LATER.format(more='op.execute("UPDATE absent SET x = 1")'))
    with pytest.raises(UsageError, match="absent"):
        Store.open(url)
    later.write_text(LATER.format(more="pass"))
    with Store.open(url) as store:
        assert list(store.records()) == [record] and counts(store)["run"] == 1
