"""Rehearsed plans in the listings: only those whose code is at hand, and whose allocations all succeeded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog import support as module
from levelfield.catalog.code_basis import CodeBasis
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import EVIDENCE, Rehearsals
from levelfield.cli.main import main
from levelfield.errors import DocumentError
from levelfield.specs.base import dump
from levelfield.specs.recorded_runs import RehearsedRuns, basis_of, key_of

ROOT = Path(__file__).parents[3]
ROW = {
    "case": "llama3_8b", "framework": "torch", "chip": "H100-SXM5-80GB", "nodes": 1, "devices": 8, "layout": "DP8 SH3",
    "micro_batch": 2, "recompute": "selective", "planned_bytes": 70 * 2**30, "allocated_bytes": 69 * 2**30,
    "reserved_bytes": 74 * 2**30, "failed_allocations": 0, "date": "2026-11-25",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for docs/verified/rehearsed.json in the place of the checkout's."""
    monkeypatch.setattr(module, "checkout", lambda: tmp_path)
    (tmp_path / EVIDENCE).parent.mkdir(parents=True)
    return tmp_path


def record(folder: Path, digests: dict[str, str] | None = None, **change: Any) -> Path:
    """Write the evidence of one row that rests on torch's decoder."""
    implementation, home = Registry().implementation("torch")
    known = CodeBasis(implementation, home).of_training([str(home / "model" / "decoder.py")], "nvidia")
    digests = {**known, **(digests or {})}
    row = {**ROW, "rests_on": key_of(digests), **change}
    path = folder / EVIDENCE
    path.write_text(dump(RehearsedRuns(basis=basis_of([digests]), rows=(row,))))
    return path


def said(**which: str) -> str | None:
    return Rehearsals(Registry()).said(**which)


def test_without_evidence_nothing_is_said(folder: Path) -> None:
    assert said() is None and Rehearsals(Registry()).faults == {}


def test_a_rehearsal_counts_for_its_framework_its_kind_and_its_vendor(folder: Path) -> None:
    record(folder)
    assert said() == said(framework="torch", kind="nvidia") == said(vendor="nvidia") == "rehearsed 2026-11"
    assert said(framework="megatron") is said(kind="cpu") is said(vendor="amd") is None


@pytest.mark.parametrize(
    ("digests", "change", "fault"),
    [
        ({"models/torch/model/decoder.py": "0" * 64}, {}, "its code has changed (models/torch/model/decoder.py)"),
        ({"models/torch/gone.py": "0" * 64}, {}, "its code has changed (models/torch/gone.py)"),
        ({"models/torch/implementation.yaml#nvidia": "0" * 64}, {}, "implementation.yaml#nvidia"),
        ({}, {"failed_allocations": 62}, "62 allocations failed"),
    ],
)
def test_a_rehearsal_of_other_code_or_with_failures_counts_for_nothing(
    digests: dict[str, str], change: dict[str, Any], fault: str, folder: Path
) -> None:
    record(folder, digests, **change)
    found = Rehearsals(Registry())
    assert found.said() is None and fault in str(next(iter(found.faults.values())))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("chip", "H1000", "unknown vendor or chip"),
        ("framework", "torhc", "unknown framework"),
        ("reserved_bytes", 1, "less than allocated_bytes"),
        ("failed_allocations", -1, "failed_allocations"),
        ("date", "yesterday", "date"),
        ("rests_on", "0" * 12, "Rehearse it again"),
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


def test_a_forged_digest_is_refused(folder: Path) -> None:
    path = record(folder, {"models/torch/model/decoder.py": "0" * 64})
    implementation, home = Registry().implementation("torch")
    now = CodeBasis(implementation, home).digest("models/torch/model/decoder.py")
    path.write_text(path.read_text().replace("0" * 64, str(now)))
    with pytest.raises(DocumentError, match="it was edited"):
        Rehearsals(Registry())


def test_the_listings_say_when_and_fit_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(folder)
    assert main(["show", "vendors"]) == 0
    vendors = capsys.readouterr().out
    assert main(["show", "frameworks"]) == 0
    frameworks = capsys.readouterr().out
    cell = " ".join(vendors.split())  # it is folded where the name of this machine's processor is long
    assert cell.endswith("; rehearsed 2026-11") and vendors.count("rehearsed") == 1
    assert "nvidia: pins ran nowhere yet; rehearsed 2026-11" in frameworks and frameworks.count("rehearsed") == 1
    assert max(map(len, (vendors + frameworks).splitlines())) <= 80
    assert main(["show", "frameworks", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["frameworks"]}
    assert listed["torch"]["verified"]["nvidia"].endswith("rehearsed 2026-11")
    assert "rehearsed" not in listed["jax"]["verified"]["nvidia"]
