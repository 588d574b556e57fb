"""Published figures: read as printed, in SI units, and whatever is wrong in a file is said with its key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError
from levelfield.specs.base import load
from levelfield.specs.figures import FigureSet, read_number
from plans import ROOT

REGISTRY = Registry([])
SETS = {name: REGISTRY.published_set(name) for name in sorted(REGISTRY.published)}
ONEFLOW, LLAMA, PADDLE, OSDI = (
    SETS[name] for name in ("oneflow_gpt", "flagperf_llama3", "flagperf_gpt3_paddle", "osdi_gpt2")
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("41", 41),
        ("40%", 40),
        ("17.50", 17.5),
        ("-1754", -1754),
        ("↓31.3%", -31.3),
        ("11.4↓%", -11.4),
        ("↑3.4", 3.4),
        (" 0.05 ", 0.05),
    ],
)
def test_a_printed_number_is_read(text: str, value: float) -> None:
    assert float(read_number(text)) == value


@pytest.mark.parametrize("text", ["", "/", "*", "OOM", "1,234", "76/80", "25.4-50.6", "1e3", ".5", "5.", "nan", "↓3↓"])
def test_what_is_no_single_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"found '{re.escape(text.strip())}', expected"):
        read_number(text)


@pytest.mark.parametrize(("name", "rows"), [(OSDI, 8), (ONEFLOW, 18), (PADDLE, 16), (LLAMA, 14)])
def test_every_row_of_the_reports_is_there(name: FigureSet, rows: int) -> None:
    assert len(name.rows) == rows


def test_figures_are_in_si_units_whatever_was_printed() -> None:
    row = ONEFLOW.row("2D_PP_2x4x4_512_2304x24")
    assert row.figure("step_seconds") == pytest.approx(13.11718)
    assert row.figure("memory_bytes") == 11958 * 2**20
    assert row.figure("flops_per_second") == 36.85e12
    assert row.figure("share_of_peak") == 0.29
    assert OSDI.row("test-10-2").figure("memory_change_bytes") == -1754 * 2**20
    assert PADDLE.rows[0].figure("memory_bytes") == pytest.approx(66.27 * 2**30)
    assert LLAMA.rows[0].figure("tokens_per_second_per_device") == 3698.7


def test_memory_by_stage_is_a_list_and_its_figure_the_fullest() -> None:
    row = PADDLE.row("13B TP2PP4SH1SP1A10080Gx1x8")
    assert [round(value / 2**30, 2) for value in row.values("memory_bytes")] == [35.84, 34.71, 32.8, 32.04]
    assert row.figure("memory_bytes") == row.values("memory_bytes")[0]


def test_what_is_not_published_is_none() -> None:
    withheld, oom = LLAMA.row("* 1x8 bf16 PP2DP4TP1"), LLAMA.row("ablation PP1DP8TP1")
    assert withheld.setting.chip is None and withheld.figure("tokens_per_second_per_device") == 2260
    assert withheld.figure("mfu") is withheld.figure("memory_bytes") is None
    assert oom.status == "oom" and oom.figure("memory_bytes") is oom.figure("tokens_per_second_per_device") is None
    assert LLAMA.rows[5].status == "reference-only" and LLAMA.rows[5].figure("memory_bytes") == 55 * 2**30
    assert LLAMA.rows[0].figure("alignment") is LLAMA.rows[0].figure("no_such_figure") is None
    forty = [row for row in PADDLE.rows if row.setting.chip == "A100-SXM4-40GB"]
    assert len(forty) == 8 and all(row.status == "not-published" and not row.figures for row in forty)


def test_a_row_is_completed_by_the_defaults_and_its_own_keys_win() -> None:
    first, h100 = LLAMA.rows[0].setting, LLAMA.rows[2].setting
    assert (first.chip, first.network is None, first.micro_batch) == ("A800-SXM4-80GB", False, 1)
    assert (h100.chip, h100.network, h100.precision) == ("H100-SXM5-80GB", None, "fp8")
    assert str(h100.parsed_layout) == "DP4TP2PP1SH1SP4+seq"


def changed(folder: Path, change: Any, name: str = "osdi_gpt2") -> Path:
    """A copy of a shipped set, changed by `change(content)`."""
    content = yaml.safe_load((ROOT / f"configs/published/{name}.yaml").read_text(encoding="utf-8"))
    change(content)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return path


FAULTS: dict[str, tuple[Any, str]] = {
    "unreadable number": (lambda c: c["rows"][0]["figures"].update(memory_bytes="56O3"), "found '56O3', expected one"),
    "a number, not a text": (lambda c: c["rows"][0]["figures"].update(memory_bytes=5603), "memory_bytes.text"),
    "unknown unit": (
        lambda c: c["defaults"]["columns"]["memory_bytes"].pop("means"),
        "defaults.columns.memory_bytes: Value error, unit: found 'mB', expected one of",
    ),
    "baseline that is not there": (lambda c: c["rows"][1].update(baseline="test-10-9"), "found 'test-10-9'"),
    "name twice": (lambda c: c["rows"][1].update(name="test-10-1"), "found the name 'test-10-1' twice"),
    "unreadable layout": (lambda c: c["rows"][0]["setting"].update(layout="8 ways"), "layout '8 ways'"),
    "unknown key": (lambda c: c["rows"][0]["setting"].update(gpus=8), "key 'rows.0.setting.gpus': unknown key"),
    "missing key": (lambda c: c["rows"][0]["setting"].pop("layout"), "key 'rows.0.setting.layout': missing"),
    "unknown source": (
        lambda c: c["defaults"]["columns"]["memory_bytes"].update(source="elsewhere"),
        "found source 'elsewhere', expected one of readme",
    ),
    "rows missing": (lambda c: c.pop("rows"), "key 'rows': missing"),
    "no rows": (lambda c: c.update(rows=[]), "key 'rows'"),
    "rows of another form": (lambda c: c.update(rows="none"), "key 'rows'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_file_is_explained(tmp_path: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    path = changed(tmp_path, change)
    with pytest.raises(DocumentError) as caught:
        load(FigureSet, path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_a_name_that_is_not_the_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "configs" / "published"
    folder.mkdir(parents=True)
    changed(folder, lambda c: c.update(name="other")).rename(folder / "mine.yaml")
    with pytest.raises(DocumentError, match=r"'other', expected 'mine'"):
        Registry([tmp_path]).published_set("mine")


def test_the_table_in_the_documentation_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs/published.md").read_text(encoding="utf-8")
    block = text.split("    schema: levelfield.figures/1", 1)[1].split("\n\n", 1)[0]
    path = tmp_path / "mine.yaml"
    path.write_text("schema: levelfield.figures/1" + block.replace("\n    ", "\n") + "\n", encoding="utf-8")
    row = load(FigureSet, path).row("eight")
    assert (row.figure("step_seconds"), row.figure("mfu")) == (2.7153, 0.586)
