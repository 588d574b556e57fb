"""Rehearsed plans in the listings: only those whose code is at hand, and whose allocations all succeeded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog import rehearsals as module
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import REHEARSED_FILE, STAND_IN_FOLDERS, Rehearsals, rehearsed_code_digest
from levelfield.cli.main import main
from levelfield.errors import DocumentError
from levelfield.specs.base import dump
from levelfield.specs.rehearsed_runs import RehearsedRuns

ROOT = Path(__file__).parents[3]
ROW = {
    "case": "llama3_8b", "framework": "torch", "chip": "H100-SXM5-80GB", "nodes": 1, "devices": 8, "layout": "DP8 SH3",
    "micro_batch": 2, "recompute": "selective", "planned_bytes": 70 * 2**30, "allocated_bytes": 69 * 2**30,
    "reserved_bytes": 74 * 2**30, "failed_allocations": 0, "date": "2026-11-25",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the code in the place of a device, and a place for docs/verified/rehearsed.json."""
    monkeypatch.setattr(module, "checkout", lambda: tmp_path)
    (tmp_path / REHEARSED_FILE).parent.mkdir(parents=True)
    for name in STAND_IN_FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def record(folder: Path, **change: Any) -> Path:
    """Write the evidence of one row of torch by the code at hand."""
    code = rehearsed_code_digest(Registry(), "torch", "nvidia")
    row = {**ROW, "commit": None, "code": code, **change}
    path = folder / REHEARSED_FILE
    path.write_text(dump(RehearsedRuns(rows=(row,))))
    return path


def latest(**conditions: str) -> str | None:
    return Rehearsals(Registry()).latest(**conditions)


def test_without_evidence_nothing_is_listed(folder: Path) -> None:
    assert latest() is None and Rehearsals(Registry()).faults == {}


def test_a_rehearsal_counts_for_its_framework_its_kind_and_its_vendor(folder: Path) -> None:
    record(folder)
    assert latest() == latest(framework="torch", kind="nvidia") == latest(vendor="nvidia") == "simulated 2026-11"
    assert latest(framework="megatron") is latest(kind="cpu") is latest(vendor="amd") is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"code": f"sha256:{0:064}", "commit": f"{7:040}"}, "its code has changed since 000000000000 of 2026-11-25"),
        ({"code": None}, "its code has changed since 2026-11-25"),
        ({"failed_allocations": 62}, "62 allocations failed"),
    ],
)
def test_a_rehearsal_of_other_code_or_with_failures_counts_for_nothing(
    change: dict[str, Any], fault: str, folder: Path
) -> None:
    record(folder, **change)
    rehearsals = Rehearsals(Registry())
    assert rehearsals.latest() is None and list(rehearsals.faults.values()) == [fault]


def test_a_rehearsal_counts_until_what_takes_the_place_of_the_device_changes(folder: Path) -> None:
    record(folder)
    for name in ("tools/standin/memory.c", "tools/rehearsal/inside/rank.py"):
        path = folder / name
        before = path.read_text()
        path.write_text(before + "// changed")
        assert latest() is None, name
        path.write_text(before)
        assert latest() is not None, name


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("chip", "H1000", "unknown vendor or chip"),
        ("framework", "torhc", "unknown framework"),
        ("reserved_bytes", 1, "less than allocated_bytes"),
        ("failed_allocations", -1, "failed_allocations"),
        ("date", "yesterday", "date"),
        ("code", "sha256:1", "key 'rows.0.code'"),
        ("speed", 1.0, "unknown key"),
    ],
)
def test_wrong_evidence_is_named(key: str, value: Any, message: str, folder: Path) -> None:
    path = record(folder)
    content = json.loads(path.read_text())
    content["rows"][0][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DocumentError, match=message) as error:
        Rehearsals(Registry())
    assert "rehearsed.json" in str(error.value)


def test_the_listings_say_when_and_fit_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(folder)
    assert main(["show", "vendors"]) == 0
    vendors = capsys.readouterr().out
    assert main(["show", "frameworks"]) == 0
    frameworks = capsys.readouterr().out
    cell = " ".join(vendors.split())  # it is folded where the name of this machine's processor is long
    assert cell.endswith("simulated 2026-11") and vendors.count("simulated") == 1
    assert re.search(r"nvidia:.*; simulated 2026-11$", frameworks, re.MULTILINE) and frameworks.count("simulated") == 1
    assert max(map(len, (vendors + frameworks).splitlines())) <= 80
    assert main(["show", "frameworks", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["frameworks"]}
    assert listed["torch"]["verified"]["nvidia"].endswith("simulated 2026-11")
    assert "rehearsed" not in listed["jax"]["verified"]["nvidia"]
