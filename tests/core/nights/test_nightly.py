"""A night runs each entry once, also when it is killed between, and keeps within its budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.nights import night_session
from levelfield.nights.night_session import NightSession
from levelfield.nights.nightly import (
    OVER_BUDGET,
    Candidate,
    NightRun,
    NightState,
    NightTools,
    first_state,
    read_state,
    run_entries,
    split_by_budget,
    state_path,
    write_state,
)
from levelfield.specs.paths import RunPaths


class Killed(BaseException):
    pass


def status(word: str = "valid", interrupted: bool = False, failure: str | None = None) -> Any:
    return SimpleNamespace(word=word, evidence="line", is_interrupted=interrupted, failure=failure)


@dataclass
class Machine:
    """Runs that write result.json, with the seconds that each takes. killed: the entry at which the platform dies."""

    runs: Path
    lasts: float = 10.0
    killed: str = ""
    after_result: bool = False
    words: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    ran: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)

    def start(self, job: Any) -> Any:
        name = job.plan.run_id
        folder = self.runs / name
        folder.mkdir(exist_ok=True)
        if name == self.killed and not self.after_result:
            raise Killed
        self.ran.append(name)
        (folder / "result.json").write_text("{}")
        if name == self.killed:
            raise Killed
        self.now += self.lasts
        return SimpleNamespace(run_id=name, status=self.words.get(name, status()))

    def tools(self) -> NightTools:
        return NightTools(
            run_job=self.start,
            record=lambda paths: self.recorded.append(paths.root.name),
            find_folder=lambda name: RunPaths(self.runs / name),
            clock=lambda: self.now,
            save=lambda state: write_state(state_path(self.runs, "n", "s"), state),
            say=lambda text: None,
        )


def work(*names: str, seconds: float = 10.0) -> list[NightRun]:
    jobs: dict[str, Any] = {name: SimpleNamespace(plan=SimpleNamespace(run_id=name)) for name in names}
    return [
        NightRun(name, f"series of {name}", job, Candidate(name, seconds, False, 0.01, 0)) for name, job in jobs.items()
    ]


def begun(runs: list[NightRun]) -> NightState:
    return first_state("n", "s", "2026-01-01T00:00:00+00:00", runs)


def states(state: NightState) -> dict[str, str]:
    return {entry.name: entry.state for entry in state.entries}


def test_every_entry_runs_once_and_is_recorded(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path), work("a", "b")
    state = run_entries(begun(runs), runs, None, machine.tools())
    assert machine.ran == machine.recorded == ["a", "b"]
    assert states(state) == {"a": "done", "b": "done"} and state.used_seconds == 20
    assert read_state(state_path(tmp_path, "n", "s")) == state


@pytest.mark.parametrize("after_result", [False, True])
@pytest.mark.parametrize("killed", ["a", "b", "c"])
def test_a_killed_night_goes_on_and_repeats_nothing(killed: str, after_result: bool, tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path, killed=killed, after_result=after_result), work("a", "b", "c")
    with pytest.raises(Killed):
        run_entries(begun(runs), runs, None, machine.tools())
    machine.killed = ""
    state = read_state(state_path(tmp_path, "n", "s"))
    assert state and states(state)[killed] == "started"
    state = run_entries(state, runs, None, machine.tools())
    assert sorted(machine.ran) == sorted(set(machine.recorded)) == ["a", "b", "c"]
    assert set(states(state).values()) <= {"done"}


def test_what_the_budget_does_not_hold_is_left_out_with_the_reason(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path), work("a", "b", "c")
    state = run_entries(begun(runs), runs, 30.0, machine.tools())
    assert states(state) == {"a": "done", "b": "done", "c": "left out"}
    assert state.entries[2].reason == OVER_BUDGET and machine.ran == ["a", "b"]


def test_the_time_of_an_earlier_start_counts_for_the_budget(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path), work("a", "b")
    state = begun(runs).model_copy(update={"used_seconds": 29.0})
    assert states(run_entries(state, runs, 30.0, machine.tools())) == {"a": "done", "b": "left out"}


def test_entries_side_by_side_are_recorded_as_they_end_and_use_the_budget_by_the_clock(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path), work("a", "b", "c")

    def run_side_by_side(jobs: Any, begin: Any, end: Any) -> None:
        first, second, third = jobs
        assert begin(first) and begin(second)
        assert set(states(written()).values()) == {"started", "waiting"}
        end(second, machine.start(second))
        assert begin(third)
        end(first, machine.start(first))
        machine.now += 10
        end(third, None)  # its process ended without a result

    def written() -> NightState:
        state = read_state(state_path(tmp_path, "n", "s"))
        assert state
        return state

    tools = replace(machine.tools(), run_side_by_side=run_side_by_side, at_once=2)
    state = run_entries(begun(runs), runs, None, tools)
    assert state == written() and states(state) == {"a": "done", "b": "done", "c": "waiting"}
    assert machine.recorded == ["b", "a"] and state.used_seconds == 30
    assert [entry.seconds for entry in state.entries[:2]] == [20, 10]


def test_twice_as_much_fits_into_the_budget_where_two_run_at_once() -> None:
    candidates = [run.candidate for run in work(*"abcdef", seconds=10.0)]
    for at_once, count in ((1, 2), (2, 5)):
        assert len(split_by_budget(candidates, 37.0, at_once)[0]) == count
    long = Candidate("long", 30.0, False, 0.01, 0)  # no longer than the night, whatever runs beside it
    assert split_by_budget([candidates[0], long], 37.0, 4)[1] == [long]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parallel", "2"), "--parallel: found no --launcher, expected one"),
        (("--parallel", "0"), "--parallel: found 0"),
        (("--launcher", "slurm"), "--launcher slurm: found no --no-confirm, expected it: pairs compare two builds"),
        (("--launcher", "slurm", "--no-confirm", "--bisect-budget", "1m"), "--bisect-budget: found it with --launcher"),
    ],
)
def test_a_night_on_a_cluster_has_no_pairs_and_one_here_no_entries_at_once(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nightly", "run", "--suite", "smoke", "--runs", str(tmp_path), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split()) and list(tmp_path.iterdir()) == []


def test_an_interrupted_entry_waits_and_nothing_follows_it(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path, words={"a": status("failed", interrupted=True)}), work("a", "b")
    state = run_entries(begun(runs), runs, None, machine.tools())
    assert states(state) == {"a": "waiting", "b": "waiting"} and machine.recorded == []


def test_a_failed_entry_is_done_with_its_reason(tmp_path: Path) -> None:
    machine, runs = Machine(tmp_path, words={"a": status("oom")}), work("a")
    state = run_entries(begun(runs), runs, None, machine.tools())
    assert state.entries[0].reason == "oom: line" and machine.recorded == ["a"]


def test_an_entry_without_an_environment_runs_in_the_next_start_and_other_failures_do_not(tmp_path: Path) -> None:
    words = {"b": status("failed", failure="environment"), "c": status("failed", failure="error")}
    first = Machine(tmp_path, words=words)
    state = run_entries(first_state("n", "s", "now", work("a", "b", "c")), work("a", "b", "c"), None, first.tools())
    assert (state.entries[1].reason or "").split(": ") == ["failed (environment)", "line"]
    assert first.ran == first.recorded == ["a", "b", "c"]
    second = Machine(tmp_path)
    state = run_entries(state, work("a", "b", "c"), None, second.tools())
    assert second.ran == ["b"] and state.entries[1].reason is None and state.entries[2].reason == "failed: line"


def test_a_damaged_state_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = state_path(tmp_path, "n", "s")
    path.write_text('{"schema": "levelfield.night/1", "night": 3}')
    with pytest.raises(UsageError, match=f"remove {path}"):
        read_state(path)
    assert read_state(tmp_path / "none.json") is None


@pytest.mark.parametrize(("budget", "holds"), [(None, True), (500.0, True), (499.0, False)])
def test_a_pair_takes_two_runs_of_the_budget_that_is_left(budget: float | None, holds: bool) -> None:
    entries = [SimpleNamespace(series="other", seconds=9000.0), SimpleNamespace(series="S", seconds=100.0)]
    session = SimpleNamespace(
        request=SimpleNamespace(budget=budget), state=SimpleNamespace(entries=entries, used_seconds=300.0),
        _count_time=lambda: None,
    )  # fmt: skip
    assert NightSession._has_budget_for_pair(session, "S") is holds  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget", "holds"), [(661.0, True), (659.0, False)])
def test_pairs_and_what_runs_beside_them_use_the_budget_by_the_clock(
    budget: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of 100 s, and two runs of 30 s with steps of 5 s: 160 s, not 10 s."""
    clock = [1000.0]
    monkeypatch.setattr(night_session, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    record = SimpleNamespace(run_id="r", step_seconds=(5.0,))
    monkeypatch.setattr(night_session, "record_of", lambda *arguments: record)
    session = object.__new__(NightSession)
    session.counted_until, session.suite = 1000.0, "s"
    session.request = SimpleNamespace(night="n", budget=budget)  # type: ignore[assignment]
    session.store = SimpleNamespace(add=lambda records: None)  # type: ignore[assignment]
    session.state = begun(work("a", seconds=100.0)).model_copy(update={"used_seconds": 300.0})
    saved: list[NightState] = []

    def save(state: NightState) -> None:
        session.state = state
        saved.append(state)

    monkeypatch.setattr(session, "save", save)
    clock[0] += 100
    for arm in "ab":
        clock[0] += 30
        session._record_arm("series of a", "confirm", arm, RunPaths(Path()))
    assert [state.used_seconds for state in saved] == [430.0, 460.0]
    assert session._has_budget_for_pair("series of a") is holds
    clock[0] += 7  # of the gate itself
    session._count_time()
    assert session.state.used_seconds == 467.0
