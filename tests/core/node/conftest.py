from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Node


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("LEVELFIELD_LOCKS", str(tmp_path / "locks"))
    node = Node(tmp_path)
    yield node
    node.end()
