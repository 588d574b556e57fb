"""docs/verified/rehearsed.json against the code at hand: default plans count, and rows that do not are marked.

With LEVELFIELD_CUDA_PYTHON two small rehearsals are repeated, and compared with their rows to the byte.
"""

from __future__ import annotations

import csv
import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chip_page
import pytest
import rehearse_all
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.cli.main import main
from levelfield.evidence.bundle_reader import read_bundle, unpack_run
from levelfield.judge.verdict import training_verdict
from levelfield.rundir.directory import read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.base import load
from levelfield.specs.rehearsed_runs import RehearsedRow
from levelfield.specs.result import Result
from rehearsal.plans import CHECKOUT, make_plan, telling_ranks, world_size
from rehearsal.rows import ROWS
from rehearsal.start import rehearse
from standin.build import build

TABLE = CHECKOUT / "docs" / "data" / "rehearsed.csv"
Rows = dict[tuple[Any, ...], tuple[RehearsedRow, str | None]]
PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
DEFAULTS = ("gpt3_6.7B", "llama3_8b", "qwen3_8b")  # by torch on 8 H100: what most users get first
REPEATED = ("gpt2_small:torch:H100:1:1", "gpt2_medium:torch:H100:1:8")
ATTEMPTS = 3  # on a busy machine a thread of torch holds DDP's old buckets a little longer, which is a higher peak


@pytest.fixture(scope="module")
def rows() -> Rows:
    """{key of a row's plan: (the row, why it does not count)} of all that is recorded."""
    return {rehearse_all.plan_key(row): (row, fault) for row, fault in Rehearsals(Registry()).faults.items()}


def row_of(rows: Rows, case: str, options: Sequence[str] = ()) -> tuple[RehearsedRow, str | None, str]:
    key = rehearse_all.plan_key(rehearse_all.facts_of(make_plan(case, list(options))))
    again = f"rehearse it: python tools/rehearse_all.py {case}"
    assert key in rows, f"found no row of {case} with {key[5:]}; {again}"
    return (*rows[key], again)


@pytest.mark.parametrize(
    "case", [name if name == "llama3_8b" else pytest.param(name, marks=pytest.mark.thorough) for name in DEFAULTS]
)
def test_the_row_of_a_default_plan_counts(case: str, rows: Rows) -> None:
    """It is of the plan that a user gets now, by the code at hand, and no allocation failed or flushed."""
    row, fault, again = row_of(rows, f"{case}:torch:H100:1:8")
    assert fault is None, f"{case}: {fault}; {again}"
    assert (row.failed_allocations, row.flushes) == (0, 0), again


def test_the_table_marks_each_row_that_does_not_count(rows: Rows) -> None:
    """A row of other code stays as long as its reason stands beside it."""
    lines = list(csv.DictReader(TABLE.read_text().splitlines()))
    assert len(lines) == len(rows) > 0
    for line, (row, fault) in zip(lines, rows.values(), strict=True):
        assert (line["case"], line["framework"], line["layout"]) == (row.case, row.framework, row.layout)
        assert line["counts"] == (fault or "yes"), "run `python tools/matrix.py --docs`"


@pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")
@pytest.mark.parametrize("case", REPEATED)
def test_a_rehearsal_repeats_its_row_to_the_byte(case: str, rows: Rows) -> None:
    planned = next(row for row in ROWS if row.case == case)
    recorded, fault, again = row_of(rows, case, planned.options)
    assert fault is None, f"{case}: {fault}; {again}"
    entry, python = make_plan(case, list(planned.options)), Path(str(PYTHON))
    ranks = list(range(world_size(entry["job"]))) if planned.delivered else telling_ranks(entry["job"])
    for _ in range(ATTEMPTS):
        found = rehearse_all.figures(rehearse(entry, python, build(python), ranks, 2, rehearse_all.SMALLEST_TIMEOUT))
        expected = {name: getattr(recorded, name) for name in found}
        if found == expected:
            return
    assert found == expected


def test_the_page_of_the_chip_is_of_the_results_beside_it() -> None:
    found = chip_page.results()
    text = chip_page.PAGE.read_text()
    assert chip_page.page(text, found) == text, "run `python tools/chip_page.py`"
    changed = {**found["H100 gpt2-small"], "micro_batch": 31}
    assert chip_page.page(text, {**found, "H100 gpt2-small": changed}) != text


@pytest.mark.parametrize(
    ("chip", "bundled", "beside"), [pytest.param("H100", 12, 10, marks=pytest.mark.thorough), ("H200", 21, 14)]
)
def test_the_bundle_of_a_chip_follows_and_has_the_results_beside_it(
    chip: str, bundled: int, beside: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its raw files are a chip's: every figure and verdict is computed again."""
    bundle = chip_page.FOLDER / chip.lower() / "2026-11-28.zip"
    assert main(["evidence", "verify", str(bundle), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {(run["word"], run["seal"]["word"]) for run in runs} == {("follows", "sealed")} and len(runs) == bundled
    with zipfile.ZipFile(bundle) as archive:
        results = {run["run"]: json.loads(archive.read(f"runs/{run['run']}/result.json")) for run in runs}
    shown = [result for result in chip_page.results().values() if result["run_id"] in results]
    assert len(shown) == beside
    for result in shown:
        for part in ("status", "throughput", "memory", "utilisation", "energy", "alignment", "loss"):
            assert result[part] == results[result["run_id"]][part], (result["run_id"], part)


def test_a_chip_that_lost_gradients_in_fp8_is_invalid() -> None:
    """By delayed scales; at smoke scale no gradient was lost whole."""
    lost = {name: run["status"] for name, run in chip_page.results().items() if run["precision"] == "fp8"}
    words = {name: status["word"] for name, status in lost.items()}
    assert words == {
        "H200 llama-fp8": "valid",
        "H200 megatron-llama-fp8": "valid",
        "H200 llama-one-device-fp8": "invalid",
        "H200 llama-one-device-fp8-megatron": "invalid",
    }
    reason = lost["H200 llama-one-device-fp8"]["reasons"][0]
    assert re.search(r"\b54 of 57\b", reason)  # parameters whose gradient is 0


def test_the_reference_in_fp8_tells_the_runs_that_lost_gradients_at_smoke_scale() -> None:
    """It is of a processor that computes the numbers of 8 bits. All else of the chip's runs agrees with it."""
    reference, judgements = Registry().reference("llama3_8b_fp8_smoke_fp8"), {}
    for run in read_bundle(chip_page.FOLDER / "h200" / "2026-11-28.zip").runs:
        if "_llama3_8b_fp8_" in run.name:
            with unpack_run(run) as paths:
                plan, raw, result = read_plan(paths), read_raw(paths), load(Result, paths.result)
                judgements[plan.implementation.framework] = training_verdict(plan, raw, result.identity, reference)
    assert set(judgements) == {"torch", "megatron"}
    for alignment in judgements.values():
        beyond = {layer.name for layer in alignment.layers if layer.limit and (layer.value or 0) > layer.limit}
        assert alignment.verdict == "different"
        assert "layers.1.attention.query.weight" in str(alignment.reason)
        assert beyond == {"gradients", "norms"}
