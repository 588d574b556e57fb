"""gpu-check on a training that only pretends: order, resumption, budget, faults, exit codes and words."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chip_check.plan import PLAN, Entry, read_plan
from chip_check.python import found_in, given_python
from chip_check.record import code_digest, read_records
from chip_check.runs import Machine, compare_with_plan, run_entry
from chip_check.speed import read_expected, speed_tables
from chip_check.summary import energies, layout_text, read_rehearsed, rehearsed_of, summarise
from gpu_check import CUDA, cannot_run
from gpu_check import main as gpu_check
from levelfield.cli.main import main as levelfield
from levelfield.specs.layout import parse_layout

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools" / "gpu_check.py"
PLUGINS = ROOT / "tests" / "core" / "plugins"
LONG = ROOT / "tests" / "containers" / "plugins"


def tiny(name: str, *options: str, case: str = "tiny", **fields: Any) -> dict[str, Any]:
    arguments = ["--case", f"{case}:fake:{{vendor}}:1:{fields.get('devices', 1)}", *options]
    return {"name": name, "minutes": 0.1, "arguments": arguments, "shows": f"shows {name}", **fields}


def short(name: str) -> dict[str, Any]:
    """An entry that trains nothing."""
    return tiny(name) | {"arguments": ["show", "cases"], "expects": ["exit 0"]}


def due(err: str) -> int:
    """Return how many entries the first line of a call says it has to do."""
    match = re.search(r"(\d+) to do", err)
    assert match is not None, err
    return int(match[1])


def choices(err: str) -> list[str]:
    """Return the names that an error of `--only` offers."""
    match = re.search(r"expected one of: (.*?);", err)
    assert match is not None, err
    return match[1].split(", ")


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def cells(text: str) -> list[list[str]]:
    """Return the cells of each row of all Markdown tables in a text."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


class CheckFolder:
    """One gpu-check/ with its plan."""

    def __init__(self, folder: Path, devices: str = "2") -> None:
        self.output = folder / "gpu-check"
        self.plan = folder / "plan.json"
        self.variables = {"LEVELFIELD_NO_BOOTSTRAP": "1", "FAKE_DEVICES": devices, "PYTHONPATH": ""}
        self.variables["LEVELFIELD_LOCKS"] = str(folder / "locks")

    def arguments(self, entries: list[dict[str, Any]], *options: str) -> list[str]:
        self.plan.write_text(json.dumps(entries))
        plugins = ("--plugins", str(PLUGINS), "--plugins", str(LONG))
        return ["--plan", str(self.plan), "--output", str(self.output), *plugins, *options]

    def start(self, entries: list[dict[str, Any]], *options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(PROGRAM), *self.arguments(entries, *options)]
        environment = {**os.environ, **self.variables}
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, entries: list[dict[str, Any]], *options: str) -> tuple[int, str, str]:
        """Within this process: `start` starts one."""
        argv = self.arguments(entries, *options)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        out, err = io.StringIO(), io.StringIO()
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self.variables.items():
                    patch.setenv(name, value)
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    return gpu_check(argv), out.getvalue(), err.getvalue()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def records(self) -> dict[str, dict[str, Any]]:
        return read_records(self.output)

    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        return content


@pytest.fixture
def folder(tmp_path: Path) -> CheckFolder:
    return CheckFolder(tmp_path)


def test_the_plan_runs_in_order_and_a_second_call_goes_on(folder: CheckFolder) -> None:
    first, second = tiny("first", "--layout", "DP2", devices=2), short("second")
    code, _, err = folder.run([first, second])
    assert code == 0, err
    assert list(folder.records()) == ["first", "second"]
    assert err.index("first: shows") < err.index("second: shows")
    before = folder.records()
    code, _, err = folder.run([first, second], "--again", "second")
    assert code == 0
    assert due(err) == 1
    assert "second: shows" in err and "first: shows" not in err
    assert folder.records()["first"] == before["first"]
    (row,) = folder.summary()["rows"]
    assert row["layout"] == "DP2TP1PP1" and row["tokens_per_second_per_device"] > 0
    assert (folder.output / "first.report.md").exists()
    assert ["first", "tiny"] in [row[:2] for row in cells((folder.output / "summary.md").read_text())]


def test_what_cannot_run_is_named(folder: CheckFolder) -> None:
    entries = [
        short("fits"),
        tiny("wide", devices=8),
        tiny("lacking", module="no_such_framework"),
        tiny("long", minutes=30.0),
    ]
    code, out, _ = folder.run(entries, "--minutes", "5")
    assert code == 0
    left_out = folder.summary()["left_out"]
    assert set(left_out) == {"wide", "lacking", "long"} and list(folder.records()) == ["fits"]
    assert all(reason in out for reason in left_out.values())
    assert numbers(left_out["wide"]) == [8, 2]
    assert "module no_such_framework" in left_out["lacking"]
    assert numbers(left_out["long"])[0] == 30
    code, out, _ = folder.run(entries, "--list")
    assert code == 0
    assert "done: exit 0" in out
    assert left_out["wide"] in out


def test_faults_have_their_words_and_an_unexpected_word_ends_with_3(folder: CheckFolder) -> None:
    entries = [
        tiny("killed", case="long", fault="kill", expects=["failed"]),
        tiny("exits", expects=["valid"]) | {"arguments": ["show", "no-such-case"], "expects": ["exit 2"]},
        tiny("unaligned", verdicts=["aligned"]),
    ]
    code, out, err = folder.run(entries)
    assert code == 3, err
    records = folder.records()
    assert records["killed"]["as_expected"] and records["killed"]["status"]["failure"] == "killed", records["killed"]
    assert records["exits"]["as_expected"] and "no-such-case" in records["exits"]["said"]
    assert {"unchecked,", "aligned"} <= set(records["unaligned"]["why_not"].split())
    assert records["unaligned"]["why_not"] in out


def test_a_part_runs_by_its_name_and_a_program_only_where_torch_sees_cuda(folder: CheckFolder) -> None:
    program = {"name": "step", "minutes": 0.1, "arguments": ["benchmarks/none.py"], "shows": "x", "part": "fast"}
    entries = [tiny("first"), short("second") | {"part": "fast"}, program]
    code, _, err = folder.run(entries, "--only", "fast", "--python", sys.executable)
    assert code == 0 and list(folder.records()) == ["second"], err
    reason = folder.summary()["left_out"]["step"]
    assert "cuda" in reason and sys.executable in reason
    code, _, err = folder.run(entries, "--only", "faster")
    assert code == 2
    assert choices(err) == ["first", "second", "step", "fast"]
    folder.variables["LEVELFIELD_NO_BOOTSTRAP"] = "0"
    machine = Machine("fake", 1, "one", "", (), folder.output)
    reason = cannot_run(read_plan(folder.plan)[2], machine, {CUDA: True})
    assert reason is not None and "--python PATH" in reason


def test_the_rows_of_a_program_are_recorded(tmp_path: Path) -> None:
    """It runs without the caller's PYTHONPATH, as a training does."""
    path = tmp_path / "program.py"
    path.write_text("import json, os; print(json.dumps([{'path': os.environ.get('PYTHONPATH')}]))")
    arguments = (f"benchmarks/{os.path.relpath(path, ROOT / 'benchmarks')}",)
    entry = Entry("program", 0.1, arguments, "shows", expects=("exit 0",))
    machine = Machine("fake", 1, "one", sys.executable, (), tmp_path)
    record = run_entry(entry, machine)
    assert record["as_expected"] and record["rows"] == [{"path": None}] and record["command"] == arguments[0]
    path.write_text("import sys; sys.exit('RuntimeError: no kernel')")
    record = run_entry(entry, machine)
    assert record["rows"] == []
    assert compare_with_plan(entry, record) == (False, record["why_not"])
    assert record["why_not"].endswith("RuntimeError: no kernel")


SHAPE = "gpt h768 v50304 s1024 b8 bf16"
STEP: dict[str, Any] = {
    **{"shape": f"{SHAPE} eager", "ratios": {"plain": 1.25, "transformers": 1.5}, "left_out": {"liger": "no gpt2"}},
    "best": {"peer": "plain", "ratio": 1.25},
    "trainers": {"ours": {"ms": 24.04, "host_ms": 16.0, "launches": 480, "losses": [10.5, 10.25, 10.0]}},
}


def test_expected_speed_stands_beside_the_measured(tmp_path: Path) -> None:
    graph = {**STEP, "shape": f"{SHAPE} graph", "trainers": {"ours": {**STEP["trainers"]["ours"], "launches": 1}}}
    other = {**graph, "trainers": {"ours": {**graph["trainers"]["ours"], "losses": [10.5, 10.25, 10.1]}}}
    head = {"part": "head", "name": "head | own", "ms": 0.5, "loss_error": 1e-8}
    failed = {**STEP, "shape": f"{SHAPE} compiled", "failed": "RuntimeError: no kernel", "trainers": {}}
    lacking = {**head, "left_out": "no triton"}
    records: dict[str, dict[str, Any]] = {"a": {"rows": [STEP, graph, failed]}, "b": {"rows": [head, lacking]}}
    records["llama-one-device"] = {"tokens_per_second_per_device": 46000.0}
    tables = {heading: rows for heading, _, rows in speed_tables(records, read_expected())}
    steps, runs, parts, changes, graphs = tables.values()
    peers = ["1.50", "no gpt2", "1.25", "1.25 (plain)"]
    assert steps[0][:-1] == [f"{SHAPE} eager", "37", "24", "24.0", "16.0", "480", *peers]
    assert numbers(steps[0][-1]) == [1.5]
    assert steps[2][3] == f"failed: {failed['failed']}"
    assert len({len(row) for row in steps}) == 1
    assert runs == [["llama-one-device", "41,653", "46,800", "46,000"]] and len(changes) == 6
    assert parts == [
        [head["name"], "0.500", "-", "-", "1.0e-08", "-"],
        [head["name"], f"left out: {lacking['left_out']}", *["-"] * 4],
    ]
    assert graphs == [[f"{SHAPE} graph", "3 equal"]]
    *_, (_, _, graphs) = speed_tables({"a": {"rows": [STEP, other]}}, read_expected())
    assert numbers(graphs[0][1]) == [3, 10.0, 10.1]
    summarise({name: {**STEP_RECORD, **record} for name, record in records.items()}, {}, [], "none", tmp_path)
    assert "Parts alone" in (tmp_path / "summary.md").read_text()
    assert not [*speed_tables({"first": {}}, read_expected())]


STEP_RECORD = {"word": "exit 0", "as_expected": True, "minutes": 1.0}


def test_each_step_of_the_plan_is_one_shape_and_each_expectation_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    torch_step = importlib.import_module("torch_step")
    chosen = {}
    for entry in PLAN:
        if entry.is_program and "torch_step" in entry.arguments[0]:
            only = [text for option, text in pairwise(entry.arguments) if option == "--only"]
            (shape,) = torch_step.shapes_of(Namespace(quick=False, device="cuda", only=only))
            chosen[torch_step.name_of(shape)] = entry.name
    expected = read_expected()
    assert set(expected["steps"]) <= set(chosen)
    assert len(chosen) == sum(entry.is_program and "torch_step" in entry.arguments[0] for entry in PLAN)
    names = {entry.name for entry in PLAN}
    assert set(expected["runs"]) <= names
    shapes = {" ".join(name.split()[:2]) for name in chosen}
    assert {name for change in expected["changes"] for name in change["ms"]} == shapes | set(expected["runs"])


def test_without_an_accelerator_it_ends_with_2(tmp_path: Path) -> None:
    code, out, err = CheckFolder(tmp_path, devices="0").run([tiny("first")])
    assert code == 2 and not out
    assert "no accelerator" in err
    assert f"--plugins {PLUGINS} --plugins {LONG}`" in err  # of the command that shows what is here
    assert "--vendor cpu" in err
    code, _, err = CheckFolder(tmp_path).run([tiny("first")], "--only", "nothing")
    assert code == 2
    assert "'nothing'" in err
    assert choices(err) == ["first"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough),  # handled as the next
        (signal.SIGTERM, 130),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.thorough),
    ],
)
def test_an_ended_call_leaves_no_run_and_the_next_goes_on(folder: CheckFolder, number: int, expected: int) -> None:
    first, long = short("first"), tiny("long", case="long")
    process = folder.start([first, long])
    deadline = time.monotonic() + 120
    while not any('"step":5,' in p.read_text() for p in folder.output.glob("runs/*_long_*/events/rank0.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == expected and "Traceback" not in err, err
    (run,) = folder.output.glob("runs/*_long_*")
    while not (run / "result.json").exists():  # its platform was interrupted too, and says so
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert json.loads((run / "result.json").read_text())["status"]["failure"] == "interrupted"
    assert list(folder.records()) == ["first"]
    code, _, err = folder.run([first, short("long")])
    assert code == 0
    assert due(err) == 1


def test_other_code_or_another_machine_makes_a_record_old(folder: CheckFolder, tmp_path: Path) -> None:
    code, _, _ = folder.run([short("first")])
    content = json.loads((folder.output / "done.json").read_text())
    content["entries"]["first"]["code"] = "another"
    (folder.output / "done.json").write_text(json.dumps(content))
    _, out, _ = folder.run([short("first")], "--list")
    assert code == 0
    assert "other code" in out
    for text in ("{", '{"schema": "other"}', "[]"):
        (folder.output / "done.json").write_text(text)
        code, _, err = folder.run([short("first")])
        assert code == 2
        assert "done.json:" in err


def test_the_code_digest_sees_a_changed_file_but_no_recording(tmp_path: Path) -> None:
    for name in ("platform", "models", "configs", "vendors/acme/recorded"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run_benchmarks.py").write_text("1")
    before = code_digest(tmp_path)
    (tmp_path / "vendors/acme/recorded/tool.txt").write_text("answer")
    assert code_digest(tmp_path) == before
    (tmp_path / "models" / "train.py").write_text("2")
    assert code_digest(tmp_path) != before


def test_carried_packages_are_seen_by_the_training_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "carried").mkdir()
    (tmp_path / "carried" / "carried_framework.py").write_text("")
    monkeypatch.setenv("LEVELFIELD_NO_BOOTSTRAP", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'platform'}")
    assert given_python(tmp_path) == sys.executable
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'platform'}{os.pathsep}{tmp_path / 'carried'}")
    python = given_python(tmp_path)
    has, releases = found_in(python, {"carried_framework", "numpy", "no.such.framework"})
    assert has == {"carried_framework": True, "numpy": True, "no.such.framework": False} and releases["numpy"]
    monkeypatch.delenv("LEVELFIELD_NO_BOOTSTRAP")
    assert given_python(tmp_path) == ""
    with pytest.raises(ValueError, match=f"--python {tmp_path}/none:"):
        found_in(str(tmp_path / "none"), set())


RECORD: dict[str, Any] = {
    **{"case": "llama3_8b+steps20", "scale": "full", "framework": "torch", "chip": "H100-SXM5-80GB", "nodes": 1},
    **{"devices": 8, "micro_batch": 2, "recompute": "selective", "word": "valid", "verdict": None, "minutes": 1.0},
    **{"layout": {"data": 8, "tensor": 1, "pipeline": 1, "sharding_stage": 3, "sharding_degree": 8}},
    **{"planned_bytes": 2**30, "allocated_peak_bytes": 2**31, "reserved_peak_bytes": None, "as_expected": True},
    **{"device_used_peak_bytes": None, "tokens_per_second_per_device": 1234.5, "why_not": None},
}


def test_rehearsed_figures_stand_beside_the_same_plan_only(tmp_path: Path) -> None:
    path = tmp_path / "rehearsed.json"
    assert read_rehearsed(path)[0] == [] and "absent" in read_rehearsed(path)[1]
    row = {key: RECORD[key] for key in ("framework", "chip", "nodes", "devices", "micro_batch", "recompute")}
    row |= {"case": "llama3_8b", "layout": "DP8TP1PP1SH3SP8", "allocated_bytes": 3 * 2**30, "unknown": 1}
    path.write_text(json.dumps({"schema": "levelfield.rehearsed/1", "rows": [row]}))
    rows, remark = read_rehearsed(path)
    assert rehearsed_of(RECORD, rows) == row
    for key, value in (("micro_batch", 1), ("chip", "H200"), ("layout", "DP8TP1PP1"), ("recompute", "none")):
        assert rehearsed_of(RECORD, [row | {key: value}]) is None, key
    assert rehearsed_of(RECORD | {"scale": "smoke"}, rows) is None
    left_out = {"fp8": "needs the module x"}
    summarise({"llama": RECORD}, left_out, rows, remark, tmp_path)
    text = (tmp_path / "summary.md").read_text()
    assert "| 1.00 | 3.00 / - | 2.00 / - | - | 1,234 | - |" in text
    assert f"- fp8: {left_out['fp8']}" in text
    for broken in ("{", '{"rows": 3}', "[]"):
        path.write_text(broken)
        rows, remark = read_rehearsed(path)
        assert rows == []
        assert remark.startswith(f"{path.name} cannot")


def test_a_layout_is_written_as_the_platform_writes_it() -> None:
    for text in ("DP4TP2PP1", "DP2CP2TP1PP1SH3SP4", "DP2EP2TP1PP1", "DP2TP2PP2SH1SP2+seq"):
        layout = parse_layout(text).layout
        assert layout_text(layout.model_dump()) == str(layout) == text


def test_energy_by_counter_and_by_sampled_power(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    sample = {"index": 0, "power_watts": 100.0}
    lines = [{"time_ns": t * 10**9, "samples": [sample | {"energy_joules": 120.0 * t}]} for t in (1, 2, 4)]
    lines.append({"time_ns": 5 * 10**9, "samples": [sample | {"energy_joules": None}]})
    path.write_text("\n".join(map(json.dumps, lines)))
    assert energies(path) == [{"device": 0, "counter_joules": 360.0, "sampled_joules": 300.0}]
    assert energies(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("record", "judgement"),
    [
        ({"word": "valid", "verdict": "aligned"}, (True, None)),
        ({"word": "oom", "status": {"reasons": ["7 GiB"]}}, (False, "found oom, expected valid: 7 GiB")),
        ({"word": "valid", "verdict": None}, (False, "found alignment None, expected aligned")),
    ],
)
def test_a_record_is_judged_by_its_word_and_verdict(record: dict[str, Any], judgement: tuple[bool, str | None]) -> None:
    entry = Entry("name", 1, ("--case",), "shows", verdicts=("aligned",))
    assert compare_with_plan(entry, record) == judgement


def test_a_plan_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    twice = json.dumps([tiny("a"), tiny("a")])
    for text in ("{", '[{"name": "a", "unknown": 1}]', '["a"]', twice):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"plan\.json"):
            read_plan(path)


def test_every_training_of_the_plan_can_be_planned_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On H100s that are not here: layouts, micro-batches and options that a framework lacks would end with 2."""
    monkeypatch.setenv("LEVELFIELD_STORE", "none")
    monkeypatch.setattr(
        "levelfield.plan.environment.import_problems", lambda *_: ()
    )  # nor is this Python that of H100s
    assert len({entry.name for entry in PLAN}) == len(PLAN)
    for entry in PLAN:
        if entry.trains:
            argv = [argument.format(vendor="H100", count=8) for argument in entry.arguments]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
                code = levelfield([*argv, "--dry-run", "--python", sys.executable])
            assert code == 0, f"{entry.name}: {err.getvalue()}"
