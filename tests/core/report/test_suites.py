"""Suites: each resolves to whole plans, as a table that was read; and what of them cannot run here is a result."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_files import GOLDEN, golden
from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.plan import environment, placement
from levelfield.plan.request import UserRequest
from levelfield.report import tables
from levelfield.run import runner, scheduler
from levelfield.run.runner import Listener
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.suite import EntryUsed
from plans import PLUGINS, ROOT

SUITES = sorted(path.stem for path in (ROOT / "configs/suites").glob("*.yaml"))
PUBLISHED = ("oneflow_gpt", "osdi_gpt2", "flagperf_gpt3_paddle", "flagperf_llama3")
NO_LISTENER = Listener(lambda text: None, lambda plan, step: None)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores, no accelerator and every Python."""
    monkeypatch.setattr(lookup, "detect_vendor", lambda registry: registry.vendor("cpu"))
    monkeypatch.setattr(placement, "usable_cores", lambda: 2)
    python = environment.Interpreter(sys.executable, (3, 10))
    monkeypatch.setattr(environment, "find_interpreter", lambda versions: python)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "2")

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([*map(str, arguments), "--plugins", str(PLUGINS)])
        return code, *capsys.readouterr()

    return run


def without_estimates(table: str) -> str:
    """The memory model has tests of its own, and a host's memory is its own."""
    masked = re.sub(r"(?<=  )[\d.]+ of ([\d.]+|unknown)\n", "# of #\n", table)
    return re.sub(r"  (yes|NO|unknown) +(?=ASSUMED|full|smoke)", "  #  ", masked)


# A published suite at both scales, another one and the smoke suite; further ones of a kind are thorough.
FIRST = {("flagperf_llama3", "auto"), ("flagperf_llama3", "smoke"), ("osdi_gpt2", "auto"), ("smoke", "auto")}


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(name, scale, marks=[] if (name, scale) in FIRST else [pytest.mark.thorough])
        for name in SUITES
        for scale in ("auto", "smoke")
    ],
)
def test_every_entry_is_planned_as_it_was_read(name: str, scale: str, here: None, command: Command) -> None:
    code, out, err = command("--suite", name, "--scale", scale, "--dry-run")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    is_smoke_already = name not in PUBLISHED
    file = f"{name}{'' if scale == 'auto' or is_smoke_already else '_here'}.txt"
    assert without_estimates(out) == golden(file, without_estimates(out))


@pytest.mark.parametrize(
    "name", [n if n == "osdi_gpt2" else pytest.param(n, marks=pytest.mark.thorough) for n in PUBLISHED]
)
def test_published_rows_are_planned_where_they_were_measured(name: str, here: None, command: Command) -> None:
    plans = [entry["plan"] for entry in json.loads(command("--suite", name, "--dry-run", "--json")[1])]
    assert {plan["entry"]["suite"] for plan in plans} == {name}
    assert sorted(plan["entry"]["name"] for plan in plans) == sorted(rows(name))
    withheld = [plan for plan in plans if not plan["hardware"]["assumed"]]
    assert [plan["entry"]["name"] for plan in withheld] == [row for row, at in rows(name).items() if at["chip"] is None]
    assert {plan["scale"] for plan in plans if plan not in withheld} == {"full"}
    assert all(plan["deviations"] == [] for plan in plans if plan not in withheld)


def rows(name: str) -> dict[str, dict[str, Any]]:
    """The settings that a published set prints for its rows, by name."""
    content = yaml.safe_load((ROOT / "configs/published" / f"{name}.yaml").read_text())
    return {row["name"]: {**content["defaults"]["setting"], **row["setting"]} for row in content["rows"]}


@pytest.mark.parametrize("name", PUBLISHED)
def test_suites_and_published_sets_say_the_same_of_each_row(name: str, here: None) -> None:
    entries, published = Registry().suite(name), rows(name)
    assert {entry.name for entry in entries.entries} == set(published)
    for entry in entries.entries:
        row, hardware = published[entry.name or ""], entry.hardware or entries.hardware
        assert hardware is not None and entry.case.split(":")[0] == row["case"]
        assert (hardware.nodes, hardware.devices) == (row["nodes"], row["devices_per_node"])
        assert hardware.chip == (row["chip"] or "withheld")
        assert (entry.set.layout, entry.set.micro_batch) == (row["layout"], row["micro_batch"])


def test_the_smoke_suite_is_every_family_through_every_framework() -> None:
    registry = Registry()
    entries = {entry.case for entry in registry.suite("smoke").entries}
    assert entries == {f"{case}:{name}" for case in ("gpt3_6.7B", "llama3_8b") for name in registry.frameworks}


def test_the_nightly_suite_is_every_smoke_work_whose_parts_all_frameworks_have_and_every_offered_pair() -> None:
    registry = Registry()
    entries = registry.suite("nightly").entries
    works = {n: registry.case(n).work("smoke").fingerprint() for n in registry.cases if registry.extension(n) is None}
    trained = [(works[case], framework, e.set.layout) for e in entries for case, framework in [e.case.split(":")]]
    assert len(trained) == len(set(trained))  # nothing trains twice
    alone = {(work, framework) for work, framework, layout in trained if layout is None}
    parts = {name: set(registry.implementation(name)[0].architecture) for name in registry.frameworks}
    cases = {n: set(registry.case(n).model.parts) for n in works}
    offered = {(works[case], name) for case in cases for name in parts if cases[case] <= parts[name]}
    every = set.intersection(*parts.values())
    in_all = {(works[case], name) for case in cases for name in parts if cases[case] <= every}
    assert in_all <= alone <= offered and len(in_all) >= 24
    layouts = {"data": "DP2", "tensor": "TP2", "sequence": "TP2+seq", "pipeline": "PP2"}
    layouts |= {f"zero{stage}": f"DP2SH{stage}SP2" for stage in (1, 2, 3)}
    for name in registry.frameworks:
        kinds = registry.implementation(name)[0].offered_parallelism("cpu")
        possible = {layout for kind, layout in layouts.items() if kind in kinds}
        for case in ("gpt3_6.7B", "llama3_8b"):
            assert {e.set.layout for e in entries if e.case == f"{case}:{name}" and e.set.layout} == possible


# -- faults


def suite(folder: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"schema": "levelfield.suite/1", "title": "t", "entries": entries, **more}))
    return path


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"case": "tinny:fake"}, "entry 'tinny:fake': unknown case 'tinny'"),
        ({"case": "tiny:fak"}, "unknown framework 'fak'; nearest: fake"),
        ({"case": "tiny"}, "entry 'tiny': --case 'tiny': found 1 parts, expected case:framework"),
        ({"case": "tiny:fake", "hardware": "1x8 F9"}, "unknown vendor or chip 'F9'"),
        ({"case": "tiny:fake", "hardware": "F1"}, "key 'entries.0.hardware': found 'F1', expected nodes x devices"),
        ({"case": "tiny:fake", "name": "row", "set": {"layout": "TP3PP2"}}, "entry 'row': layout DP1TP3PP2 with micro"),
        ({"case": "tiny:fake", "hardware": "1x8 F1", "set": {"layout": "TP16"}}, "16 is not 8"),
        ({"case": "tiny:fake", "set": {"steps": 3}}, "'steps' is locked, the case fixes it"),
        ({"case": "tiny:fake", "colour": "red"}, "key 'entries.0.colour': unknown key"),
    ],
)
def test_what_is_wrong_in_a_suite_names_the_entry(
    command: Command, tmp_path: Path, entry: dict[str, Any], says: str
) -> None:
    path = suite(tmp_path, entry)
    code, out, err = command("--suite", path, "--dry-run")
    assert (code, out) == (2, "") and says in err and "mine" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--assume-hardware", "1x2 F1"),
            "--assume-hardware: found no --dry-run; add it, since a run needs real devices",
        ),
        (("--assume-hardware", "F1", "--dry-run"), "--assume-hardware: found 'F1', expected nodes x devices"),
        (("--assume-hardware", "1x2 F9", "--dry-run"), "unknown vendor or chip 'F9'"),
        (("--scale", "full"), "--scale full: 1x8 F1 is not here"),
    ],
)
def test_hardware_that_cannot_be_assumed_is_refused(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    code, _, err = command("--suite", suite(tmp_path, {"case": "tiny:fake"}, hardware="1x8 F1"), *arguments)
    assert code == 2 and says in err and "Traceback" not in err


def test_assumed_hardware_wins_over_a_suites(command: Command, tmp_path: Path) -> None:
    path = suite(tmp_path, {"case": "tiny:fake", "set": {"micro_batch": 1}}, hardware="1x8 F1")
    assert "1x8 F1" in command("--suite", path, "--dry-run")[1]
    table = command("--suite", path, "--assume-hardware", "1x2 F2", "--dry-run")[1]
    assert "1x2 F2" in table and "F1" not in table and "ASSUMED" in table


def test_a_suite_and_a_case_are_shown_each_in_its_way(command: Command, tmp_path: Path) -> None:
    path = suite(
        tmp_path, {"case": "tiny:fake", "name": "row", "note": "read this", "set": {"layout": "TP2"}}, hardware="1x2 F2"
    )
    words = command("--suite", path, "--case", "tiny:fake:F1:1:2", "--dry-run")[1].split()
    assert words[:2] == ["case", "tiny"] and words.count("micro_batch") == 1
    assert words[words.index("mine:") :][1:3] == ["1", "entries"]
    assert words[words.index("row:") :][1:3] == ["read", "this"]


# -- runs


def no_python(versions: str) -> None:
    raise UsageError(f"Python {versions} is needed to make the environment")


def results(folder: Path, path: Path) -> list[Result]:
    work = scheduler.list_entries(Registry([PLUGINS]), [], [str(path)], UserRequest())
    jobs = scheduler.plan_jobs(Registry([PLUGINS]), work, None)
    return list(scheduler.run_jobs(jobs, folder / "runs", NO_LISTENER, lambda plan: None))


def test_what_this_machine_cannot_run_is_a_result_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    monkeypatch.setattr(environment, "find_interpreter", no_python)
    monkeypatch.setattr(runner, "run", lambda *arguments: pytest.fail("nothing is there to run it with"))
    path = suite(tmp_path, {"case": "tiny:fake", "name": "one"}, {"case": "tiny:fake", "name": "two", "scale": "smoke"})
    first, second = results(tmp_path, path)
    assert [(r.entry and r.entry.name, r.status.word) for r in (first, second)] == [
        ("one", "unsupported"),
        ("two", "unsupported"),
    ]
    assert {p.name for p in (tmp_path / "runs" / first.run_id).iterdir()} >= {"plan.json", "result.json"}
    table = "\n".join(tables.suite_lines([first, second])) + "\n"
    assert table == golden("report/suite_without_python.txt", table)


def test_by_itself_such_a_case_is_refused_as_before(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_interpreter", no_python)
    code, _, err = command("--case", "gpt3_6.7B:oneflow:cpu")
    assert code == 2 and "oneflow on cpu:" in err and "==3.10.*" in err


def test_a_plan_to_look_at_says_that_its_python_is_not_here(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_interpreter", no_python)
    code, out, _ = command("--case", "gpt3_6.7B:oneflow:cpu", "--dry-run")
    *_, reason = " ".join(out.split()).partition("CANNOT")
    assert code == 0 and "oneflow on cpu:" in reason and "==3.10.*" in reason


def test_a_parallelism_that_is_not_offered_is_unsupported_too(tmp_path: Path, here: None) -> None:
    (result,) = results(tmp_path, suite(tmp_path, {"case": "gpt3_6.7B:deepspeed", "set": {"layout": "TP2"}}))
    table = "\n".join(tables.suite_lines([result])) + "\n"
    assert table == golden("report/suite_without_tensor_parallelism.txt", table)


def test_a_framework_that_the_vendor_here_lacks_is_unsupported_and_a_plan_says_so(
    tmp_path: Path, command: Command
) -> None:
    path = suite(tmp_path, {"case": "gpt3_6.7B:torch", "scale": "smoke"})
    (result,) = results(tmp_path, path)
    evidence = result.status.evidence or ""
    assert (result.status.word, result.chip) == ("unsupported", "F1")
    for part in ("vendor fake", "kind 'fake'", "`reaches.fake`", "torch's implementation.yaml"):
        assert part in evidence
    code, out, _ = command("--suite", path, "--dry-run")
    assert code == 0 and f"CANNOT RUN: {evidence}" in " ".join(out.split())
    assert command("--case", "gpt3_6.7B:torch:fake", "--dry-run")[0] == 2


@pytest.mark.parametrize("name", SUITES)
def test_no_entry_asks_for_what_is_not_offered(name: str) -> None:
    for table in GOLDEN.glob(f"{name}*.txt"):
        assert "CANNOT" not in table.read_text(), "offer it, or leave the entry out"


def test_tables_stand_for_all_repeats_and_groups(
    plan_for: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    plan = plan_for("tiny:fake")
    entries = [
        plan.model_copy(update={"repeat": repeat, "entry": EntryUsed(suite="s", name=name, group=group)})
        for name, group, repeat in (("a", "G", 1), ("a", "G", 2), ("b", "G", 1), ("c", "H", 1))
    ]
    lines = tables.plan_lines(entries)
    assert "3 entries" in lines[0] and [line for line in lines if line.startswith("[")] == ["[G]", "[H]"]
    assert tables.group_by_suite([plan, *entries]) == [entries]
