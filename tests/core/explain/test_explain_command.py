"""`report explain` on run directories that were never trained: tables, differences, damaged records, exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.explain.explanation import explained
from levelfield.explain.step_difference import step_difference
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.step_parts import WAITING, LateRank, Milliseconds, PartTime, StepParts
from recorded_runs import record_run, seal_again

STEP_US = 1000.0
Trace = dict[str, Any]


def trace(core: float = 400.0, late: float = 0.0) -> Trace:
    """A step of a processor's thread, in microseconds. late: how much longer it is Python in one layer."""
    times = [
        ("lf/step", 0.0, STEP_US + core - 400.0 + late),
        ("lf/attention core/layers.0.attention", 100.0, 120.0 + core),
        ("aten::_softmax", 110.0, 110.0 + core),
        ("lf/mlp/layers.0.mlp", 130.0 + core, 330.0 + core + late),
        ("aten::mm", 130.0 + core, 330.0 + core),
    ]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 5e9 + start, "dur": end - start, "tid": 1, "args": {}}
        for name, start, end in times
    ]
    return {"traceEvents": events, "baseTimeNanoseconds": 10**18, "host_name": "0"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def recorded(runs: Path) -> Callable[..., RunPaths]:
    """recorded(name, traces by rank): a run of two ranks with two recorded steps of each."""

    def make(name: str, *traces: Trace) -> RunPaths:
        paths = RunPaths(runs / name)
        record_run(paths)
        plan = load(Plan, paths.plan).model_copy(update={"explain_steps": 2})
        paths.plan.write_text(dump(plan))
        paths.profile.mkdir()
        for rank, each in enumerate(traces or (trace(), trace())):
            said = {"name": "step_profile", "values": _written(paths, rank, each)}
            append(paths, rank, [*_steps((traces or [trace()])[0]), said])
        seal_again(paths)
        return paths

    return make


def append(paths: RunPaths, rank: int, events: list[dict[str, Any]]) -> None:
    file = paths.events / f"rank{rank}.jsonl"
    *before, end = file.read_text().splitlines()
    lines = [json.dumps({"event": "measured", **each}) for each in events]
    file.write_text("\n".join([*before, *lines, end]) + "\n")


def _steps(each: Trace) -> list[dict[str, Any]]:
    took = int(each["traceEvents"][0]["dur"] * 1000)
    return [
        {
            "name": "profiled_step",
            "values": {"number": number, "recorded": is_recorded, "counted": number > 0, "begin_ns": 0,
                       "end_ns": took if is_recorded else int(took / 1.04)},
        }
        for number in (0, 1, 2)
        for is_recorded in (False, True)
    ]  # fmt: skip


def _written(paths: RunPaths, rank: int, each: Trace) -> dict[str, Any]:
    files = {}
    for number in (0, 1, 2):
        content = gzip.compress(json.dumps(each).encode())
        name = f"rank{rank}.step{number}.json.gz"
        (paths.profile / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    return {"files": files, "left_out": [], "profiler": "Kineto of torch 2.13.0"}


def test_one_run_fits_the_terminal_and_adds_up(recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded("a")
    assert main(["report", "explain", "a"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "attention by math: 40% of the step" in text and "recording changed these steps by +4.0%" in text
    assert ["attention", "core", "layers.*.attention", "0.40", "40.0%"] in [line.split() for line in text.splitlines()]
    assert main(["report", "explain", "a", "--format", "markdown"]) == 0
    assert "| attention core | 0.40 |" in capsys.readouterr().out
    assert main(["report", "explain", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "levelfield.step-parts/1"
    assert found["overhead"]["recorded_ms"]["mean"] == pytest.approx(1.0)
    assert sum(each["time"]["mean"] for each in found["parts"]) == pytest.approx(found["step"]["mean"]) == 1.0
    assert {each["part"]: round(each["time"]["mean"], 3) for each in found["parts"]} == {
        "attention core": 0.4, "mlp": 0.2, "host": 0.4,
    }  # fmt: skip


def test_two_runs_are_told_apart_in_sentences_that_add_up(recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded("a"), recorded("b", trace(core=900.0, late=100.0), trace(core=900.0, late=100.0))
    assert main(["report", "explain", "a", "b"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "1. attention core takes 0.5 ms more (83% of the change): layers.0.attention +0.5 ms" in " ".join(
        text.split()
    )
    assert "host takes 0.1 ms more (17% of the change): layers.0.mlp +0.1 ms" in " ".join(text.split())
    assert "Together they explain 100% of the change. A: attention by math: 40% of the step" in " ".join(text.split())
    assert main(["report", "explain", "b", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(each["change_ms"] for each in found["changes"]) == pytest.approx(found["whole"]["change_ms"]) == -0.6
    assert main(["report", "explain", "a", "b", "--format", "markdown"]) == 0
    assert "| attention core | 0.40 | 0.90 | +0.50 |" in capsys.readouterr().out


def test_a_part_that_changes_more_than_the_step_has_no_share(recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded("a", trace(late=300.0), trace(late=300.0)), recorded("b", trace(core=900.0), trace(core=900.0))
    assert main(["report", "explain", "a", "b"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1. attention core takes 0.5 ms more (more than the whole change)" in text
    assert "2. host takes 0.3 ms less (against the change)" in text


def test_equal_runs_show_no_difference(recorded, capsys: pytest.CaptureFixture[str]) -> None:
    recorded("a"), recorded("b")
    assert main(["report", "explain", "a", "b"]) == 0
    assert "within the spread of the recorded steps" in capsys.readouterr().out


def test_what_cannot_be_explained_is_said_with_its_reason(recorded, runs: Path, capsys) -> None:
    record_run(RunPaths(runs / "ordinary"))
    recorded("one")
    assert main(["report", "explain", "ordinary"]) == 2
    assert "found no recorded steps, expected a run with --explain-step" in capsys.readouterr().err
    assert main(["report", "explain", "one", "one", "one"]) == 2
    other = recorded("two")
    plan = load(Plan, other.plan)
    other.plan.write_text(dump(plan.model_copy(update={"work_digest": "sha256:" + "0" * 64})))
    code = main(["report", "explain", "one", "two"])
    err = capsys.readouterr().err
    assert code == 4 and "found different work" in err, err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "its digest is not that of the rank's event"),
        (lambda path: path.write_bytes(gzip.compress(b"{}")), "its digest is not that of the rank's event"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["cut short", "another record", "missing"],
)
def test_a_damaged_record_leaves_its_step_out(damage: Any, said: str, recorded) -> None:
    paths = recorded("a")
    damage(paths.profile / "rank1.step2.json.gz")
    found = explained(paths)
    assert found.recorded_steps == 1 and found.step.low is None
    assert len(found.missing) == 1 and said in found.missing[0] and "rank1.step2" in found.missing[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["traceEvents"][0].update(dur=float("nan")), "rank1.step1"),
        (lambda t: t["traceEvents"][2].update(ts="soon"), "rank1.step1"),
        (lambda t: t.update(traceEvents=[]), "expected the span of one step"),
        (lambda t: t.update(traceEvents=None), "rank1.step1"),
    ],
    ids=["NaN", "a text", "no events", "null"],
)
def test_a_record_that_makes_no_sense_is_said_by_name(change: Any, said: str, recorded) -> None:
    broken = trace()
    change(broken)
    paths = recorded("a", trace(), broken)
    assert main(["report", "explain", "a"]) == 2
    with pytest.raises(Exception, match=said):
        explained(paths)


def test_a_cut_record_is_no_trace_though_its_digest_holds(recorded) -> None:
    from levelfield.explain.explanation import trace_of

    content = gzip.compress(json.dumps(trace()).encode())
    assert trace_of(content)["host_name"] == "0"
    with pytest.raises(ValueError, match="cut short"):
        trace_of(content[:-30])


def test_an_error_of_the_recorder_is_the_reason(recorded, capsys: pytest.CaptureFixture[str]) -> None:
    paths = recorded("a")
    for rank in (0, 1):
        file = paths.events / f"rank{rank}.jsonl"
        kept = [line for line in file.read_text().splitlines() if '"step_profile"' not in line]
        file.write_text("\n".join(kept) + "\n")
        append(paths, rank, [{"name": "step_profile", "values": {"failed": "RuntimeError: out of memory"}}])
    assert main(["report", "explain", "a"]) == 2
    assert "rank 0: RuntimeError: out of memory" in capsys.readouterr().err


def test_the_records_are_in_the_seal_by_their_digests(recorded) -> None:
    paths = recorded("a")
    paths.step_parts.write_text(dump(explained(paths)))
    assert load(StepParts, paths.step_parts) == explained(paths)
    assert seal_finding(paths).word == "sealed"
    shutil.copy(paths.profile / "rank0.step1.json.gz", paths.profile / "rank0.step2.json.gz")
    assert explained(paths).missing == (), "the same content"
    file = paths.events / "rank0.jsonl"
    file.write_text(file.read_text().replace('"counted": true', '"counted": false', 1))
    assert seal_finding(paths).word == "tampered"


def test_a_rank_that_names_another_ranks_record_is_not_read(recorded) -> None:
    paths = recorded("a", trace(), trace(core=900.0))
    file = paths.events / "rank0.jsonl"
    digest = hashlib.sha256((paths.profile / "rank1.step2.json.gz").read_bytes()).hexdigest()
    own = hashlib.sha256((paths.profile / "rank0.step2.json.gz").read_bytes()).hexdigest()
    swapped = f'"rank1.step2.json.gz": "{digest}"'
    file.write_text(file.read_text().replace(f'"rank0.step2.json.gz": "{own}"', swapped))
    assert explained(paths).recorded_steps == 1


def test_the_interval_of_a_change_has_the_spread_of_both_runs(recorded) -> None:
    parts = explained(recorded("a"))
    spread = [
        parts.model_copy(update={"step": Milliseconds(mean=mean, low=mean - half, high=mean + half)})
        for mean, half in ((10.0, 3.0), (12.0, 4.0))
    ]
    assert step_difference(*spread).whole.half == pytest.approx(5.0)


def test_a_longer_wait_names_the_late_rank_and_what_takes_it_longer(recorded) -> None:
    before = explained(recorded("a"))
    waits = PartTime(part=WAITING, time=Milliseconds(mean=2.0), recompute_ms=0.0, overlapped_ms=0.0)
    step = Milliseconds(mean=before.step.mean + 2.0)
    place = {"part": "mlp", "where": "layers.0.mlp", "longer_ms": 12.5}
    for fields, end in (
        (place, "for rank 1, whose mlp in layers.0.mlp takes 12.5 ms more than its peers'"),
        (dict.fromkeys(place), "for rank 1"),
    ):
        late = LateRank.model_validate({"rank": 1, "waited_ms": 2.0, **fields})
        after = before.model_copy(update={"parts": (*before.parts, waits), "step": step, "late": (late,)})
        assert step_difference(before, after).sentences == (f"{WAITING} takes 2.0 ms more (100% of the change): {end}",)
        shorter = f"{WAITING} takes 2.0 ms less (100% of the change)"
        assert step_difference(after, before.model_copy(update={"late": (late,)})).sentences == (shorter,)


def test_pages_have_the_parts_of_the_records_and_not_of_an_edited_file(recorded, tmp_path: Path) -> None:
    paths = recorded("20261122T030405Z_a")
    parts = explained(paths)
    edited = parts.model_copy(update={"warnings": ("planted",)})
    paths.step_parts.write_text(dump(edited))
    assert main(["report", "pages", str(tmp_path / "site"), paths.root.name]) == 0
    (data,) = (tmp_path / "site" / "data").glob("runs-*.js")
    assert parts.warnings[0] in data.read_text() and "planted" not in data.read_text()


def test_a_run_with_one_program_for_all_layers_is_compared_with_all_layers_of_the_other(recorded) -> None:
    together = trace()
    for each in together["traceEvents"]:
        each["name"] = each["name"].replace("layers.0.", "layers.*.")
    of_all, slower = explained(recorded("a", together, together)), explained(recorded("b", *[trace(core=600.0)] * 2))
    core = step_difference(of_all, slower).changes[0]
    assert [(each.where, each.ms) for each in core.places] == [("layers.*.attention", pytest.approx(core.ms))]
    apart = step_difference(explained(recorded("c")), slower).changes[0]
    assert [each.where for each in apart.places] == ["layers.0.attention"]
