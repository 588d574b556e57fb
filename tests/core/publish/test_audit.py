"""The audit: one wrong digit is found in every derived column; what is recorded is held to its record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import LayoutError
from levelfield.publish.audit import Audit, audited, works_of
from levelfield.publish.derived_figures import FORMULAS
from levelfield.specs.base import load
from levelfield.specs.figures import Disagreement, FigureSet, Formula, PublishedRow
from levelfield.specs.layout import parse_layout
from plans import ROOT

REGISTRY = Registry([])
SETS = {name: REGISTRY.figures(name) for name in sorted(REGISTRY.published)}
WORKS = {name: works_of(REGISTRY, figures) for name, figures in SETS.items()}
KNOWN = {
    "flagperf_gpt3_paddle": {},
    "flagperf_llama3": {
        ("H100 1x8 bf16+fp8 PP1DP4TP2", "mfu_high"): ("50.6", "50.9", "-0.3"),
        ("ablation PP4DP2TP1", "mfu"): ("50.0", "50.9", "-0.9"),
    },
    "oneflow_gpt": {
        ("2D_PP_2x4x4_512_2304x24, log line 6", "step_seconds"): ("13.12500", "13.12499", "+0.00001"),
    },
    "osdi_gpt2": {
        ("test-14-2", "memory_change"): ("11.4↓", "-17.4", "+6.0"),
        ("test-19-2", "memory_change_bytes"): ("-2727", "-2007", "-720"),
        ("test-19-2", "memory_change"): ("↓23.1", "-18.1", "-5.0"),
        ("test-19-2", "samples_per_second_change"): ("↑3.4", "3.5", "-0.1"),
    },
}
CELLS = [(name, column, cell) for name, s in SETS.items() for row in s.rows for column, cell in row.figures.items()]
DERIVED = sorted({(name, column) for name, column, cell in CELLS if cell.formula})
READ = sorted({(name, cell.of) for name, _, cell in CELLS if cell.of and not cell.of.startswith("log.")})
NUMBERS = ("nodes", "devices_per_node", "micro_batch", "accumulation", "global_batch", "sequence_length")


def audit(name: str, rows: tuple[PublishedRow, ...] | None = None) -> Audit:
    figures = SETS[name]
    return audited(figures.model_copy(update={"rows": rows}) if rows else figures, WORKS[name])


def without_logs(name: str) -> FigureSet:
    return SETS[name].model_copy(update={"logs": ()})


def with_cell(row: PublishedRow, column: str, **changes: Any) -> PublishedRow:
    cell = row.figures[column].model_copy(update=changes)
    return row.model_copy(update={"figures": {**row.figures, column: cell}})


def wrong_digits(text: str) -> Iterator[str]:
    """The text with each of its digits replaced, by the next and by the one before."""
    for place in re.finditer(r"\d", text):
        for step in (1, 9):
            yield f"{text[: place.start()]}{(int(place[0]) + step) % 10}{text[place.end() :]}"


def with_row(figures: FigureSet, row: PublishedRow) -> FigureSet:
    """The rows that the audit of this one reads: it, and those that it is a baseline of or has as one."""
    near = tuple(other for other in figures.rows if row.name == other.baseline or other.name == row.baseline)
    return figures.model_copy(update={"rows": (row, *near), "logs": tuple(g for g in figures.logs if g.of == row.name)})


@pytest.mark.parametrize("name", SETS)
def test_exactly_the_known_figures_do_not_follow(name: str) -> None:
    found = audit(name)
    assert {(f.row, f.figure): (f.printed, f.recomputed, f.difference) for f in found.of("recorded")} == KNOWN[name]
    assert found.faults == [] and all(f.why for f in found.of("recorded"))
    assert len(found.of("follows")) > 100


def test_what_has_nothing_to_follow_from_is_withheld_or_ran_out_of_memory() -> None:
    found = {f"{f.row}, {f.figure}: {f.arithmetic}" for name in SETS for f in audit(name).of("open")}
    assert found == {
        "* 1x8 bf16 PP2DP4TP1, chip_memory_bytes: the figure is withheld",
        "* 1x8 bf16 PP2DP4TP1, mfu: the figure is withheld",
        "ablation PP1DP8TP1, mfu: the figure is oom",
    }


@pytest.mark.parametrize(("name", "column"), DERIVED, ids="/".join)
def test_a_wrong_digit_in_a_derived_column_is_found(name: str, column: str) -> None:
    planted = 0
    for row in SETS[name].rows:
        cell = row.figures.get(column)
        if cell is None or not cell.formula or not cell.numbers:
            continue
        for text in wrong_digits(str(cell.text)):
            faults = audited(with_row(SETS[name], with_cell(row, column, text=text)), {}).faults
            assert (row.name, column) in {(f.row, f.figure) for f in faults}, f"{row.name}: {text} passed"
            planted += 1
    assert planted


@pytest.mark.parametrize(("name", "column"), READ, ids="/".join)
def test_a_wrong_first_digit_of_what_a_formula_reads_is_found(name: str, column: str) -> None:
    planted = 0
    for row in SETS[name].rows:
        cell = row.figures.get(column)
        if cell is None or not cell.numbers or len(cell.numbers) > 1:
            continue
        wrong = with_cell(row, column, text=next(wrong_digits(str(cell.text))), disagrees=None)
        reading = (c for r in with_row(SETS[name], wrong).rows for c in r.figures.values() if c.of == column)
        if any(cell.numbers for cell in reading):
            assert audited(with_row(SETS[name], wrong), {}).faults, f"{row.name}: {column} {wrong.figures[column].text}"
            planted += 1
    assert planted or column == "memory_bytes_by_device"


def test_a_wrong_digit_in_the_log_is_found() -> None:
    figures = SETS["oneflow_gpt"]
    (log,) = figures.logs
    figures = figures.model_copy(update={"rows": (figures.row(log.of),)})
    for number, line in enumerate(log.lines):
        for column in ("micro_batches", "samples", "step_seconds"):
            for text in wrong_digits(str(line[column].text)):
                changed = {**line, column: line[column].model_copy(update={"text": text})}
                lines = (*log.lines[:number], changed, *log.lines[number + 1 :])
                planted = figures.model_copy(update={"logs": (log.model_copy(update={"lines": lines}),)})
                assert audited(planted, {}).faults, f"line {number + 1}: {column} {text}"


@pytest.mark.parametrize("name", SETS)
def test_a_wrong_number_in_a_setting_is_found(name: str) -> None:
    for row in SETS[name].rows:
        for key in NUMBERS:
            wrong = row.setting.model_copy(update={key: getattr(row.setting, key) + 1})
            planted = row.model_copy(update={"setting": wrong})
            assert audited(with_row(without_logs(name), planted), WORKS[name]).faults, f"{row.name}: {key}"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("key", ["layout", "layout_printed"])
def test_a_wrong_digit_in_a_layout_is_found(name: str, key: str) -> None:
    for row in SETS[name].rows:
        text = getattr(row.setting, key) or "1x1x1"
        for wrong in filter(lambda other: sizes(other) not in (None, sizes(text)), wrong_digits(text)):
            planted = row.model_copy(update={"setting": row.setting.model_copy(update={key: wrong})})
            assert audited(with_row(without_logs(name), planted), WORKS[name]).faults, f"{row.name}: {key} {wrong}"


def sizes(text: str) -> tuple[object, ...] | None:
    """What a layout's text says beside how states are sharded, which no report prints; None: refused when read."""
    try:
        found = parse_layout(text)
    except LayoutError:
        return None
    return (
        found.layout.data,
        found.layout.tensor,
        found.layout.pipeline,
        found.nodes,
        found.devices,
        found.micro_batch,
    )


@pytest.mark.parametrize("key", ["layers", "hidden_size", "heads"])
def test_a_wrong_shape_is_found(key: str) -> None:
    for row in SETS["oneflow_gpt"].rows:
        assert row.setting.model
        shape = row.setting.model.model_copy(update={key: getattr(row.setting.model, key) + 1})
        planted = row.model_copy(update={"setting": row.setting.model_copy(update={"model": shape})})
        faults = audited(with_row(without_logs("oneflow_gpt"), planted), WORKS["oneflow_gpt"]).faults
        assert f"{key} of {row.setting.case}" in {f.figure for f in faults}


def test_a_record_is_held_to_what_it_says() -> None:
    figures = SETS["flagperf_llama3"]
    row, column = figures.row("ablation PP4DP2TP1"), "mfu"
    otherwise = with_cell(row, column, disagrees=Disagreement(by="-0.8", why="by another number"))
    in_vain = with_cell(row, column, text="50.9")
    for planted, verdict in ((otherwise, "recorded otherwise"), (in_vain, "recorded in vain")):
        (fault,) = audited(with_row(figures, planted), {}).faults
        assert (fault.figure, fault.verdict) == (column, verdict)


def test_a_relation_may_be_recorded_and_not_in_vain() -> None:
    figures = SETS["osdi_gpt2"]
    row = figures.rows[0]
    excused = row.model_copy(update={"disagrees": {"devices": "for the test"}})
    broken = row.setting.model_copy(update={"nodes": 2, "layout_printed": None})
    assert [f.verdict for f in audited(with_row(figures, excused), {}).faults] == ["recorded in vain"]
    planted = excused.model_copy(update={"setting": broken})
    found = audited(figures.model_copy(update={"rows": (planted,)}), {})
    assert found.faults == [] and [f.figure for f in found.of("recorded")] == ["devices"]


def test_figures_without_their_inputs_are_open_and_say_why() -> None:
    figures = SETS["flagperf_llama3"]
    row = figures.rows[0]
    rest = {name: cell for name, cell in row.figures.items() if name != "tokens_per_second_per_device"}
    found = audited(figures.model_copy(update={"rows": (row.model_copy(update={"figures": rest}),)}), {})
    assert [(f.figure, f.arithmetic) for f in found.of("open")] == [
        ("mfu", "this row prints no tokens_per_second_per_device")
    ]
    bare = audited(figures.model_copy(update={"rows": (row,), "chips": {}}), {})
    assert {f.arithmetic for f in bare.of("open")} == {
        "no memory of A800-SXM4-80GB under `chips`",
        "no bf16 peak of A800-SXM4-80GB under `chips`",
    }


def test_nothing_is_divided_by_zero() -> None:
    figures = SETS["osdi_gpt2"]
    zero = with_cell(figures.rows[0], "memory_bytes", text="0")
    found = audited(figures.model_copy(update={"rows": (figures.rows[1], zero)}), {})
    said = {f.figure: f.arithmetic for f in found.of("open")}
    assert said == {"memory_change": "memory_bytes is 0, expected a divisor that is not 0"}


def test_every_formula_has_a_function_and_a_published_figure() -> None:
    used = {c.formula for s in SETS.values() for row in s.rows for c in row.figures.values()}
    used |= {c.formula for s in SETS.values() for log in s.logs for c in log.columns.values()}
    assert set(FORMULAS) == set(get_args(Formula)) == used - {None}


# -- the command


def own(folder: Path, change: Any) -> Path:
    content = yaml.safe_load((ROOT / "configs/published/osdi_gpt2.yaml").read_text(encoding="utf-8"))
    content["name"] = "mine"
    change(content)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    assert load(FigureSet, path)
    return path


def test_the_command_lists_what_is_recorded_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "audit"]) == 0
    text = capsys.readouterr().out
    assert "printed 50.0 %, recomputed 50.9 %, difference -0.9" in text
    assert "= 9160 mB / 11087 mB - 1" in text and "4 do not, as recorded" in " ".join(text.split())
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_all_findings_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "audit", "flagperf_gpt3_paddle", "--all"]) == 0
    assert "= 17.23 samples/s x 2048 / 8" in capsys.readouterr().out


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "audit", "oneflow_gpt", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["faults"] == 0 and len(found["findings"]) == found["derived"] > 300
    assert {"row", "figure", "verdict", "printed", "recomputed", "difference", "arithmetic"} < set(found["findings"][0])


def test_a_file_of_ones_own_is_audited_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "audit", str(own(tmp_path, lambda c: None))]) == 0
    path = own(tmp_path, lambda c: c["rows"][1]["figures"].update(memory_change="↓31.4"))
    assert main(["evidence", "audit", str(path)]) == 4
    out, err = capsys.readouterr()
    assert "printed ↓31.4 %, recomputed -31.3 %, difference -0.1" in out
    assert "1 figure(s) not as recorded: mine: test-10-2, memory_change" in err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["rows"][0]["setting"].update(case="gpt2_smal"), "unknown case 'gpt2_smal'; nearest: gpt2_small"),
        (lambda c: c["rows"][0]["setting"].update(case="gpt3_13B"), "1n_8g_dp_1bs"),
    ],
)
def test_a_case_that_is_not_there_or_another_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, says: str
) -> None:
    code = main(["evidence", "audit", str(own(tmp_path, change))])
    out, err = capsys.readouterr()
    if code == 2:
        assert says in err and "mine.yaml: key 'setting.case'" in err
    else:
        assert code == 4 and "test-10-1, layers of gpt3_13B" in out


@pytest.mark.parametrize(
    ("name", "says"),
    [("pears", "unknown published set 'pears'"), ("absent.yaml", "absent.yaml: cannot be read: No such file")],
)
def test_what_is_not_there_is_exit_code_2(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "audit", name]) == 2
    assert says in capsys.readouterr().err


def test_the_table_in_the_documentation_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/published.md").read_text(encoding="utf-8")
    block = text.split("    schema: levelfield.figures/1", 1)[1].split("\n\n", 1)[0]
    path = tmp_path / "mine.yaml"
    path.write_text("schema: levelfield.figures/1" + block.replace("\n    ", "\n") + "\n", encoding="utf-8")
    assert main(["evidence", "audit", str(path)]) == 0
    assert "of 5 derived figures and relations 5 follow" in capsys.readouterr().out
