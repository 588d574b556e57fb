"""A new store has the tables and views of docs/store.md; a store of another version is refused with what to do."""

from __future__ import annotations

import re

import pytest
from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord
from levelfield.store import schema
from levelfield.store.database import Store
from levelfield.store.schema import METADATA, VERSION
from levelfield.store.upkeep import faults
from plans import ROOT
from sqlalchemy import Connection, inspect

FORMER = ("DROP TABLE store_version", "CREATE TABLE alembic_version (version_num TEXT)")
NEWER = ("UPDATE store_version SET version = '2.0.0'",)


def execute(store: Store, *lines: str) -> None:
    def run(connection: Connection) -> None:
        for line in lines:
            connection.exec_driver_sql(line)

    store.written(run)


def test_a_new_store_has_the_tables_and_the_views_that_the_documentation_names(url: str) -> None:
    text = (ROOT / "docs/store.md").read_text()
    with Store.open(url) as store, store.engine.connect() as connection:
        tables = inspect(connection)
        assert {*tables.get_table_names()} == {*METADATA.tables, "store_version"}
        for view in ("v_result", "v_series"):
            (section,) = re.findall(rf"`{view}` has a row.*?\n\n", text, re.DOTALL)
            columns = {column["name"] for column in tables.get_columns(view)}
            missing = [name for name in columns if f"`{name}`" not in section]
            assert missing == ([] if view == "v_result" else [name for name in missing if name in schema.SERIES.c])


@pytest.mark.parametrize(("lines", "version"), [(FORMER, "0.1.0"), (NEWER, "2.0.0")])
def test_a_store_of_another_version_is_refused_and_left_alone(
    url: str, record: RunRecord, lines: tuple[str, ...], version: str
) -> None:
    with Store.open(url) as store:
        store.add([record])
        execute(store, *lines)
    for read_only in (True, False):
        with pytest.raises(UsageError, match=rf"version {version}, expected {VERSION}\."):
            Store.open(url, read_only)
    with store.engine.connect() as connection:
        run_ids = connection.exec_driver_sql("SELECT run_id FROM run").scalars().all()
        assert run_ids == [record.run_id]


def test_a_store_without_tables_is_not_made_by_reading(new_database: str) -> None:
    with pytest.raises(UsageError, match="no tables"):
        Store.open(new_database, read_only=True)


def test_where_a_table_cannot_be_made_none_is(new_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of another program has the name of one of ours."""
    monkeypatch.setattr(schema, "_version", lambda connection: schema.VERSION)
    with Store.open(new_database) as store:
        execute(store, "CREATE TABLE finding (lost TEXT)")
        monkeypatch.undo()
        with pytest.raises(UsageError, match='"finding" already'):
            Store.open(new_database)
        with store.engine.connect() as connection:
            assert inspect(connection).get_table_names() == ["finding"]


def test_a_store_from_before_a_figure_gets_its_column_and_reads_it_from_results(url: str, record: RunRecord) -> None:
    assert record.mfu is not None
    with Store.open(url) as store:
        store.add([record.model_copy(update={"mfu": None})])  # a row that was written when no column had it
        execute(store, "DROP VIEW v_result", "ALTER TABLE run DROP COLUMN mfu")
    with pytest.raises(UsageError, match="column mfu"):
        Store.open(url, read_only=True)
    with Store.open(url) as store, store.engine.connect() as connection:
        assert store.record(record.run_id).mfu == record.mfu and faults(store) == []
        rates = connection.exec_driver_sql("SELECT mfu FROM v_result").scalars().all()
        assert rates == [None]
    with Store.open(url, read_only=True) as store:
        assert [point.mfu for point in store.points()[record.series.fingerprint()]] == [None]


def test_a_changed_figure_of_a_row_is_damage(url: str, record: RunRecord) -> None:
    with Store.open(url) as store:
        store.add([record])
        execute(store, "UPDATE run SET mfu = NULL")
        (fault,) = faults(store)
        assert f"run {record.run_id}:" in fault
