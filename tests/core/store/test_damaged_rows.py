"""One row of a store that is not what was written: each command says so, and `store check` names the row.

Each column meets each command with one of three values; with LEVELFIELD_FUZZ, as in `make thorough`, with all three.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.store.database import Store
from stored_records import changed

COLUMNS = (
    *("run.began", "run.content", "run.evidence", "run.night", "run.row_digest", "run.run_id", "run.series_id"),
    *(
        "run.mfu_megatron",
        "run.window_first",
        "raw.documents",
        "raw.losses",
        "raw.steps",
        "series.document",
        "series.sample",
    ),
    *("condition.document", "subject.document", "node.digest", "event.document", "event.at"),
)
FURTHER = (  # of a kind that a column of the same table shows
    *("run.began", "run.content", "run.evidence", "run.mfu_megatron", "run.night", "run.run_id", "run.window_first"),
    *("raw.documents", "raw.steps", "series.sample", "event.document"),
)
VALUES = ("'x'", "x'00ff00'", "5")
UNSEEN = {("node.digest", "'x'"), ("node.digest", "5")}  # no digest covers it, and no command needs it to be one
COMMANDS = (
    *(
        ["store", "check"],
        ["store", "info"],
        ["store", "export"],
        ["store", "export", "--format", "csv"],
        ["nightly", "gate"],
    ),
    *(
        ["nightly", "history", "SERIES"],
        ["compare", "RUN", "OTHER"],
        ["nightly", "levels"],
        ["report", "pages", "DIR"],
    ),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, record: RunRecord) -> Path:
    """A store with three runs and an event."""
    file = tmp_path_factory.mktemp("made") / "results.sqlite"
    event = StoreEvent(
        id="e1", kind="note", at="2026-01-02T00:00:00+00:00", who="a", why="a test", series=record.series.fingerprint()
    )
    with Store.open(str(file)) as store:
        store.add(changed(record, number) for number in range(3))
        store.add_event(event)
    return file


@pytest.mark.parametrize(
    "column", [pytest.param(name, marks=[pytest.mark.thorough] if name in FURTHER else []) for name in COLUMNS]
)
def test_a_damaged_row_is_no_fault_of_the_platform(
    made: Path, tmp_path: Path, record: RunRecord, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    table, name = column.split(".")
    words_of = {"RUN": changed(record, 0).run_id, "OTHER": changed(record, 1).run_id, "DIR": str(tmp_path / "html")}
    words_of["SERIES"] = f"{record.series.case}:{record.series.framework}"
    step = 1 if "LEVELFIELD_FUZZ" in os.environ else len(VALUES)
    for number, value in enumerate(VALUES):
        path = Path(shutil.copy(made, tmp_path))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE {table} SET {name} = {value} WHERE rowid = (SELECT min(rowid) FROM {table})")
            connection.commit()
        for words in (COMMANDS[0], *COMMANDS[1 + number % step :: step]):
            code = main([*(words_of.get(word, word) for word in words), "--store", str(path)])
            output = capsys.readouterr()
            assert code in (0, 2, 4) and "fault of" not in output.err, (value, words, output.err)
            if words == ["store", "check"]:
                assert code == 4 or (column, value) in UNSEEN, (value, output.out)
        shutil.rmtree(tmp_path / "html", ignore_errors=True)


def test_a_command_names_the_damaged_row(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(shutil.copy(made, tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE run SET began = x'00ff00' WHERE rowid = 1")
        (run_id,) = connection.execute("SELECT run_id FROM run WHERE rowid = 1").fetchone()
        connection.commit()
    assert main(["store", "export", "--store", str(path)]) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert f"store {path}: run {run_id}: " in output and "`store check`" in output
    assert main(["store", "prune", "--run", run_id, "--store", str(path)]) == 0
    assert main(["store", "check", "--store", str(path)]) == 0
