"""Rows of noise from runs that another machine made, of which a bundle is here."""

from __future__ import annotations

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli import references_command
from levelfield.cli.main import main
from levelfield.judge.noise import independent_noise, limits_from
from levelfield.specs.reference import Reference
from plans import ROOT

H100 = ROOT / "docs" / "verified" / "h100" / "2026-11-28.zip"
LLAMA = "llama3_8b_smoke_fp32"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Reference]:
    """The references that the command would write."""
    references: list[Reference] = []
    monkeypatch.setattr(references_command, "_write_reference", lambda reference, *_: references.append(reference))
    return references


def test_a_run_of_a_bundle_becomes_a_row(written: list[Reference], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "references", "noise", LLAMA, f"{H100}:16088d"]) == 0
    (reference,) = written
    (row,) = (row for row in reference.noise if row.run_id.endswith("16088d"))
    assert (row.hardware or "").startswith("H100") and row.why is None and 0 < row.curve < 1e-6
    assert "torch 2.11.0+cu130" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reference", "run", "code", "words"),
    [
        ("gpt3_6.7B_smoke_fp32", "9add31", 4, "first step 1.8e-06, limit"),  # products in TF32
        (LLAMA, "d62d96", 2, "did other work"),
        (LLAMA, "nowhere", 2, "unknown run of"),
    ],
)
def test_a_run_that_may_not_become_one_changes_nothing(
    written: list[Reference], capsys: pytest.CaptureFixture[str], reference: str, run: str, code: int, words: str
) -> None:
    assert main(["align", "references", "noise", reference, f"{H100}:{run}"]) == code
    assert words in " ".join(capsys.readouterr().err.split()) and not written


@pytest.mark.parametrize("name", [LLAMA, "gpt3_6.7B_smoke_fp32", "llama3_8b_bf16_smoke_bf16"])
def test_a_chip_is_among_the_kinds_of_the_shipped_references(name: str) -> None:
    reference = Registry().reference(name)
    assert "processor" in {noise.kind for noise in independent_noise(reference)}
    assert limits_from(reference).norms is not None
