"""Stores on both databases, and records to put into them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from levelfield.specs.record import RunRecord
from postgresql import server
from stored_records import real_record

_NUMBERS = count()


@pytest.fixture(scope="session")
def record(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """The record of the valid run of two ranks."""
    folder = tmp_path_factory.mktemp("record") / recorded.name
    return real_record(Path(shutil.copytree(recorded, folder)))


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for all tests of this process."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # of xdist's processes
    with server(shared / "postgresql") as url:
        yield url


@pytest.fixture
def new_database(postgresql: str) -> str:
    """The URL of an empty database of that server."""
    import psycopg

    name = f"store{next(_NUMBERS)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgresql.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is not there yet, on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'folder' / 'results.sqlite'}"
    database: str = request.getfixturevalue("new_database")
    return database
