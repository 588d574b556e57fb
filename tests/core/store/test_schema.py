"""A new store has the tables and views of docs/store.md; a store of another version is refused with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compared_records import other_use
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord, StoredResult
from levelfield.specs.result import DISTURBED
from levelfield.specs.run_figures import MFU_NAME
from levelfield.store import schema
from levelfield.store.database import Store
from levelfield.store.rows import COPIED_COLUMNS, row_digest
from levelfield.store.schema import METADATA, RUN, SCHEMA_VERSION
from levelfield.store.upkeep import find_faults
from plans import ROOT
from sqlalchemy import Connection, inspect, update
from stored_records import changed

FORMER = ("DROP TABLE store_version", "CREATE TABLE alembic_version (version_num TEXT)")
NEWER = ("UPDATE store_version SET version = '2.0.0'",)


def execute(store: Store, *lines: str) -> None:
    def run(connection: Connection) -> None:
        for line in lines:
            connection.exec_driver_sql(line)

    store.write(run)


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
        with pytest.raises(UsageError, match=rf"version {version}, expected {SCHEMA_VERSION}\."):
            Store.open(url, read_only)
    with store.engine.connect() as connection:
        run_ids = connection.exec_driver_sql("SELECT run_id FROM run").scalars().all()
        assert run_ids == [record.run_id]


def test_a_store_without_tables_is_not_made_by_reading(new_database: str) -> None:
    with pytest.raises(UsageError, match="no tables"):
        Store.open(new_database, read_only=True)


def test_where_a_table_cannot_be_made_none_is(new_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of another program has the name of one of ours."""
    monkeypatch.setattr(schema, "_table_version", lambda connection: schema.SCHEMA_VERSION)
    with Store.open(new_database) as store:
        execute(store, "CREATE TABLE finding (lost TEXT)")
        monkeypatch.undo()
        with pytest.raises(UsageError, match='"finding" already'):
            Store.open(new_database)
        with store.engine.connect() as connection:
            assert inspect(connection).get_table_names() == ["finding"]


def made_by_1_0_0(store: Store, of_palm: float) -> None:
    """Make the store what version 1.0.0 wrote: a column `mfu`, of another formula, in the place of today's."""

    def change(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE run ADD COLUMN mfu DOUBLE PRECISION")
        connection.exec_driver_sql(f"UPDATE run SET mfu = {of_palm}")
        plain = ["mfu" if name == MFU_NAME else name for name in COPIED_COLUMNS]
        rows = connection.exec_driver_sql("SELECT * FROM run JOIN raw ON raw.run_id = run.id").mappings().all()
        for row in rows:
            raw = {name: bytes(row[name]) for name in ("steps", "losses", "documents")}
            run_id = connection.exec_driver_sql(f"SELECT run_id FROM run WHERE id = {row['id']}").scalar_one()
            digest = row_digest({**row, "run_id": run_id, "disturbance": None}, raw, plain)
            connection.execute(update(RUN).where(RUN.c.id == row["id"]).values(row_digest=digest))

    store.write(change)
    execute(store, "DROP VIEW v_result", f"ALTER TABLE run DROP COLUMN {MFU_NAME}")
    execute(store, "ALTER TABLE run DROP COLUMN disturbance")
    execute(store, "UPDATE store_version SET version = '1.0.0'")


def test_a_store_of_1_0_0_gets_the_headlines_figures_from_its_results(url: str, record: RunRecord) -> None:
    assert record.mfu_megatron is not None
    series = record.series.fingerprint()
    with Store.open(url) as store:
        store.add([record, changed(record, 1)])
        made_by_1_0_0(store, of_palm=0.875)
    with pytest.raises(UsageError, match=f"column {MFU_NAME}"):
        Store.open(url, read_only=True)
    with Store.open(url) as store, store.engine.connect() as connection:
        assert find_faults(store) == [] and store.record(record.run_id) == record
        rows = connection.exec_driver_sql("SELECT * FROM v_result").mappings().all()
        assert [row[MFU_NAME] for row in rows] == [record.mfu_megatron] * 2 and "mfu" not in rows[0]
        assert not any(0.875 in row.values() for row in rows)
        assert connection.exec_driver_sql("SELECT version FROM store_version").scalars().all() == [SCHEMA_VERSION]
    with Store.open(url, read_only=True) as store:
        assert [point.mfu_megatron for point in store.points()[series]] == [record.mfu_megatron] * 2


def test_a_row_that_was_changed_before_the_new_figure_stays_damaged(url: str, record: RunRecord) -> None:
    with Store.open(url) as store:
        store.add([record, changed(record, 1)])
        made_by_1_0_0(store, of_palm=0.875)
        execute(store, f"UPDATE run SET mfu = 0.5 WHERE run_id = '{record.run_id}'")
    with Store.open(url) as store:
        (fault,) = find_faults(store)
        assert f"run {record.run_id}:" in fault


def test_a_store_knows_which_runs_were_disturbed_also_those_of_1_0_0(url: str, record: RunRecord) -> None:
    content = {**record.stored_result.content, "other_use": other_use(1.72, 2)}
    loud = changed(record, 1, stored_result=StoredResult(content))
    series = record.series.fingerprint()

    def disturbances(store: Store) -> dict[str, str | None]:
        return {point.run_id: point.disturbance for point in store.points()[series]}

    expected = {record.run_id: None, loud.run_id: "up to 1.7 of 2 cores"}
    with Store.open(url) as store:
        store.add([record, loud])
        assert disturbances(store) == expected
        made_by_1_0_0(store, of_palm=0.875)
    with Store.open(url) as store:
        assert disturbances(store) == expected and find_faults(store) == []
        assert {point.displayed_status for point in store.points()[series]} == {"valid", DISTURBED}
        assert {run.word for run in store.records([*expected])} == {"valid"}
        execute(store, "UPDATE run SET disturbance = NULL")
        (fault,) = find_faults(store)
        assert f"run {loud.run_id}:" in fault


def test_a_changed_figure_of_a_row_is_damage(url: str, record: RunRecord) -> None:
    with Store.open(url) as store:
        store.add([record])
        execute(store, "UPDATE run SET mfu_megatron = NULL")
        (fault,) = find_faults(store)
        assert f"run {record.run_id}:" in fault


def test_a_backup_of_1_0_0_is_restored_as_todays_store(record: RunRecord, tmp_path: Path) -> None:
    backup, restored = str(tmp_path / "backup.sqlite"), str(tmp_path / "restored.sqlite")
    with Store.open(backup) as store:
        store.add([record, changed(record, 1)])
        made_by_1_0_0(store, of_palm=0.875)
    assert main(["store", "restore", backup, "--store", restored]) == 0
    with Store.open(restored, read_only=True) as store:
        assert find_faults(store) == [] and store.record(record.run_id) == record
