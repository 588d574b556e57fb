"""`report explain` on run directories that were never trained: tables, differences, damaged records, exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.explain.explanation import compute_step_parts, unpacked_trace
from levelfield.explain.step_difference import step_difference
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.step_parts import WAITING, LateRank, Milliseconds, PartTime, StepParts
from recorded_runs import record_run, seal_again

GOLDEN = Path(__file__).parents[1] / "golden" / "explain.txt"
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


class RecordedRun(Protocol):
    """Makes a run of two ranks with two recorded steps of each. traces: by rank."""

    def __call__(self, name: str, *traces: Trace) -> RunPaths: ...


@pytest.fixture
def recorded(runs: Path) -> RecordedRun:
    def make(name: str, *traces: Trace) -> RunPaths:
        paths = RunPaths(runs / name)
        record_run(paths)
        plan = load(Plan, paths.plan).model_copy(update={"explain_steps": 2})
        paths.plan.write_text(dump(plan))
        paths.profile.mkdir()
        for rank, step in enumerate(traces or (trace(), trace())):
            profile = {"name": "step_profile", "values": _written(paths, rank, step)}
            append(paths, rank, [*_steps((traces or [trace()])[0]), profile])
        seal_again(paths)
        return paths

    return make


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """explain(arguments): what `report explain` prints, on one line."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["report", "explain", *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def append(paths: RunPaths, rank: int, events: list[dict[str, Any]]) -> None:
    file = paths.events / f"rank{rank}.jsonl"
    *before, end = file.read_text().splitlines()
    lines = [json.dumps({"event": "measured", **event}) for event in events]
    file.write_text("\n".join([*before, *lines, end]) + "\n")


def _steps(step: Trace) -> list[dict[str, Any]]:
    took = int(step["traceEvents"][0]["dur"] * 1000)
    return [
        {
            "name": "profiled_step",
            "values": {"number": number, "recorded": is_recorded, "counted": number > 0, "begin_ns": 0,
                       "end_ns": took if is_recorded else int(took / 1.04)},
        }
        for number in (0, 1, 2)
        for is_recorded in (False, True)
    ]  # fmt: skip


def _written(paths: RunPaths, rank: int, step: Trace) -> dict[str, Any]:
    files = {}
    for number in (0, 1, 2):
        content = gzip.compress(json.dumps(step).encode())
        name = f"rank{rank}.step{number}.json.gz"
        (paths.profile / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    return {"files": files, "left_out": [], "profiler": "Kineto of torch 2.13.0"}


def test_one_run_fits_the_terminal_and_adds_up(recorded: RecordedRun, explain: Callable[..., str]) -> None:
    recorded("a")
    text = explain("a")
    assert "by math: 40%" in text
    assert "by +4.0%" in text
    assert re.search(r"attention core layers\.\*\.attention 0\.40 40\.0%", text)
    assert re.search(r"\| attention core \| 0\.40 \|", explain("a", "--format", "markdown"))
    parts = json.loads(explain("a", "--json"))
    assert parts["schema"] == "levelfield.step-parts/1"
    assert parts["overhead"]["recorded_ms"]["mean"] == pytest.approx(1.0)
    assert sum(part["time"]["mean"] for part in parts["parts"]) == pytest.approx(parts["step"]["mean"]) == 1.0
    assert {part["part"]: round(part["time"]["mean"], 3) for part in parts["parts"]} == {
        "attention core": 0.4, "mlp": 0.2, "host": 0.4,
    }  # fmt: skip


# A change of a step, and the first sentences about it: part, milliseconds, share, and where.
DIFFERENCES: dict[str, tuple[tuple[Trace, Trace], tuple[str, ...]]] = {
    "with the change": (
        (trace(), trace(core=900.0, late=100.0)),
        (
            "attention core takes 0.5 ms more (83% of the change): layers.0.attention +0.5 ms",
            "host takes 0.1 ms more (17% of the change): layers.0.mlp +0.1 ms",
        ),
    ),
    "more than the step, and against it": (
        (trace(late=300.0), trace(core=900.0)),
        (
            "attention core takes 0.5 ms more (more than the whole change): layers.0.attention +0.5 ms",
            "host takes 0.3 ms less (against the change): layers.0.mlp -0.3 ms",
        ),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_two_runs_are_told_apart_in_sentences(name: str, recorded: RecordedRun, explain: Callable[..., str]) -> None:
    (before, after), sentences = DIFFERENCES[name]
    recorded("a", before, before), recorded("b", after, after)
    text = explain("a", "b")
    assert [sentence for number, sentence in enumerate(sentences, start=1) if f"{number}. {sentence}" not in text] == []


def test_the_changes_of_two_runs_add_up(recorded: RecordedRun, explain: Callable[..., str]) -> None:
    recorded("a"), recorded("b", trace(core=900.0, late=100.0), trace(core=900.0, late=100.0))
    text = explain("a", "b")
    assert "explain 100%" in text
    assert "A: attention" in text, "the warnings of each run have its letter"
    difference = json.loads(explain("b", "a", "--json"))
    changes = sum(change["change_ms"] for change in difference["changes"])
    assert changes == pytest.approx(difference["whole"]["change_ms"]) == -0.6
    assert difference["explained"] == pytest.approx(1.0)
    assert re.search(r"core \| 0\.40 \| 0\.90 \| \+0\.50 \|", explain("a", "b", "--format", "markdown"))


def test_one_run_and_a_difference_print_as_in_the_golden_file(
    recorded: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded("a"), recorded("b", trace(core=900.0, late=100.0), trace(core=900.0, late=100.0))
    for arguments in (["a"], ["a", "b"]):
        assert main(["report", "explain", *arguments]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_equal_runs_show_no_difference(recorded: RecordedRun, explain: Callable[..., str]) -> None:
    recorded("a"), recorded("b")
    text = explain("a", "b")
    assert "spread" in text and "no difference" in text


def test_what_cannot_be_explained_has_its_reason(
    recorded: RecordedRun, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(RunPaths(runs / "ordinary"))
    recorded("one")
    assert main(["report", "explain", "ordinary"]) == 2
    assert "--explain-step" in capsys.readouterr().err
    assert main(["report", "explain", "one", "one", "one"]) == 2
    other = recorded("two")
    plan = load(Plan, other.plan)
    other.plan.write_text(dump(plan.model_copy(update={"work_digest": "sha256:" + "0" * 64})))
    capsys.readouterr()
    assert main(["report", "explain", "one", "two"]) == 4
    assert "different work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "its digest is not that of the rank's event"),
        (lambda path: path.write_bytes(gzip.compress(b"{}")), "its digest is not that of the rank's event"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["cut short", "another record", "missing"],
)
def test_a_damaged_record_leaves_its_step_out(
    damage: Callable[[Path], object], reason: str, recorded: RecordedRun
) -> None:
    paths = recorded("a")
    damage(paths.profile / "rank1.step2.json.gz")
    parts = compute_step_parts(paths)
    assert parts.recorded_steps == 1 and parts.step.low is None
    (missing,) = parts.missing
    assert missing.startswith("rank1.step2")
    assert reason in missing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["traceEvents"][0].update(dur=float("nan")), "rank1.step1"),
        (lambda t: t["traceEvents"][2].update(ts="soon"), "rank1.step1"),
        (lambda t: t.update(traceEvents=[]), "expected the span of one step"),
        (lambda t: t.update(traceEvents=None), "rank1.step1"),
    ],
    ids=["NaN", "a text", "no events", "null"],
)
def test_a_record_that_makes_no_sense_is_named(
    change: Callable[[Trace], object], words: str, recorded: RecordedRun
) -> None:
    broken = trace()
    change(broken)
    paths = recorded("a", trace(), broken)
    assert main(["report", "explain", "a"]) == 2
    with pytest.raises(UsageError, match=words):
        compute_step_parts(paths)


def test_a_cut_record_is_no_trace_though_its_digest_holds() -> None:
    content = gzip.compress(json.dumps(trace()).encode())
    assert unpacked_trace(content)["host_name"] == "0"
    with pytest.raises(ValueError, match="cut short"):
        unpacked_trace(content[:-30])


def test_an_error_of_the_recorder_is_the_reason(recorded: RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    paths, message = recorded("a"), "RuntimeError: out of memory"
    for rank in (0, 1):
        file = paths.events / f"rank{rank}.jsonl"
        lines = [line for line in file.read_text().splitlines() if '"step_profile"' not in line]
        file.write_text("\n".join(lines) + "\n")
        append(paths, rank, [{"name": "step_profile", "values": {"failed": message}}])
    assert main(["report", "explain", "a"]) == 2
    assert f"rank 0: {message}" in capsys.readouterr().err


def test_the_records_are_in_the_seal_by_their_digests(recorded: RecordedRun) -> None:
    paths = recorded("a")
    paths.step_parts.write_text(dump(compute_step_parts(paths)))
    assert load(StepParts, paths.step_parts) == compute_step_parts(paths)
    assert seal_finding(paths).word == "sealed"
    shutil.copy(paths.profile / "rank0.step1.json.gz", paths.profile / "rank0.step2.json.gz")
    assert compute_step_parts(paths).missing == (), "the same content"
    file = paths.events / "rank0.jsonl"
    file.write_text(file.read_text().replace('"counted": true', '"counted": false', 1))
    assert seal_finding(paths).word == "tampered"


def test_a_rank_that_names_another_ranks_record_is_not_read(recorded: RecordedRun) -> None:
    paths = recorded("a", trace(), trace(core=900.0))
    file = paths.events / "rank0.jsonl"
    names = [f"rank{rank}.step2.json.gz" for rank in (0, 1)]
    digests = [hashlib.sha256((paths.profile / name).read_bytes()).hexdigest() for name in names]
    entry, other = (f'"{name}": "{digest}"' for name, digest in zip(names, digests, strict=True))
    file.write_text(file.read_text().replace(entry, other))
    assert compute_step_parts(paths).recorded_steps == 1


def test_the_interval_of_a_change_has_the_spread_of_both_runs(recorded: RecordedRun) -> None:
    parts = compute_step_parts(recorded("a"))
    spread = [
        parts.model_copy(update={"step": Milliseconds(mean=mean, low=mean - half, high=mean + half)})
        for mean, half in ((10.0, 3.0), (12.0, 4.0))
    ]
    assert step_difference(*spread).whole.half_interval_ms == pytest.approx(5.0)


def test_a_longer_wait_names_the_late_rank_and_what_takes_it_longer(recorded: RecordedRun) -> None:
    before = compute_step_parts(recorded("a"))
    waits = PartTime(part=WAITING, time=Milliseconds(mean=2.0), recompute_ms=0.0, overlapped_ms=0.0)
    step = Milliseconds(mean=before.step.mean + 2.0)
    place = {"part": "mlp", "where": "layers.0.mlp", "longer_ms": 12.5}
    for fields, end in (
        (place, "for rank 1, whose mlp in layers.0.mlp takes 12.5 ms more than its peers'"),
        (dict.fromkeys(place), "for rank 1"),
    ):
        late = LateRank.model_validate({"rank": 1, "waited_ms": 2.0, **fields})
        after = before.model_copy(update={"parts": (*before.parts, waits), "step": step, "late": (late,)})
        longer = f"{WAITING} takes 2.0 ms more (100% of the change): {end}"
        assert step_difference(before, after).sentences == (longer,)
        shorter = f"{WAITING} takes 2.0 ms less (100% of the change)"
        assert step_difference(after, before.model_copy(update={"late": (late,)})).sentences == (shorter,)


def test_pages_have_the_parts_of_the_records_and_not_of_an_edited_file(recorded: RecordedRun, tmp_path: Path) -> None:
    paths = recorded("20261122T030405Z_a")
    parts = compute_step_parts(paths)
    edited = parts.model_copy(update={"warnings": ("planted",)})
    paths.step_parts.write_text(dump(edited))
    assert main(["report", "pages", str(tmp_path / "site"), paths.root.name]) == 0
    (data,) = (tmp_path / "site" / "data").glob("runs-*.js")
    assert parts.warnings[0] in data.read_text() and "planted" not in data.read_text()


def test_a_run_with_one_program_for_all_layers_is_compared_with_all_layers_of_the_other(
    recorded: RecordedRun,
) -> None:
    together = trace()
    for event in together["traceEvents"]:
        event["name"] = event["name"].replace("layers.0.", "layers.*.")
    of_all, slower = (
        compute_step_parts(recorded("a", together, together)),
        compute_step_parts(recorded("b", *[trace(core=600.0)] * 2)),
    )
    core = step_difference(of_all, slower).changes[0]
    (place,) = core.places
    assert place.where == "layers.*.attention"
    assert place.ms == pytest.approx(core.ms)
    apart = step_difference(compute_step_parts(recorded("c")), slower).changes[0]
    assert [place.where for place in apart.places] == ["layers.0.attention"]
