"""A run from the command line to its result, with a framework that only pretends: real processes, real files."""

from __future__ import annotations

import errno
import json
import math
import os
import pkgutil
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.cli.main import main
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import RunFailed
from levelfield.judge.collector import collect
from levelfield.measure import other_use
from levelfield.node.control_groups import MemoryKills
from levelfield.node.device_files import DeviceLocks
from levelfield.node.process_identity import live_rank_processes
from levelfield.plan.request import Decision
from levelfield.plan.resolution import resolve
from levelfield.run import runner
from levelfield.run.interruption import interrupt_once
from levelfield.run.runner import finish
from levelfield.rundir.follower import Follower, StepProgress
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from plans import PLUGINS
from planted_corpora import write_megatron
from read_only_disk import read_only

Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def two_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings(monkeypatch, tmp_path)


def surroundings(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setenv("FAKE_DEVICES", "2")
    patch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)


def command(runs: Path, *arguments: str) -> list[str]:
    options = ["--case", "tiny:fake:F1", "--scale", "smoke", "--python", sys.executable]
    return [*options, "--plugins", str(PLUGINS), "--runs", str(runs), *arguments]


@pytest.fixture
def train(runs: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """train(*arguments): run `tiny:fake` on two dies and return the exit code and the results."""

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        code = main(command(runs, "--json", *arguments))
        out, err = capsys.readouterr()
        assert err == ""
        return code, json.loads(out)

    return run


def only(runs: Path) -> RunPaths:
    (folder,) = runs.iterdir()
    return RunPaths(folder)


@dataclass(frozen=True)
class Finished:
    """A run that no test changes: its folder of runs, the command's exit code and the result that it printed."""

    runs: Path
    code: int
    result: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        surroundings(patch, folder)
        patch.setenv("NCCL_DEBUG", "INFO")
        code = main(command(folder / "runs", "--json"))
    (result,) = json.loads(out.getvalue())
    return Finished(folder / "runs", code, result)


def test_a_run_ends_valid_and_leaves_all_that_it_was_given_and_said(finished: Finished) -> None:
    code, result, paths = finished.code, finished.result, only(finished.runs)
    assert code == 0 and result["status"]["word"] == "valid" and result["steps_done"] == 12
    assert {p.name for p in paths.root.iterdir()} == {
        "plan.json", "request.json", "job.json", "provenance.json", "events", "telemetry.jsonl", "logs",
        "outcome.json", "status.json", "result.json", "report.md",
    }  # fmt: skip
    assert {p.name for p in paths.events.glob("*.jsonl")} == {"rank0.jsonl", "rank1.jsonl"}
    assert json.loads(paths.status.read_text())["phase"] == "done"
    assert json.loads(paths.result.read_text()) == result
    assert result["disturbance"]["platform_seconds"][1] > 0
    assert result["memory"]["device_used_peak"]["value"] == 2**28
    assert result["seal"]["word"] == "sealed"
    assert {"provenance.json", "request.json", "events/rank1.jsonl", "logs/rank0.log", "telemetry.jsonl"} <= {
        *json.loads(paths.outcome.read_text())["seal"]["files"]
    }
    peak = load(Plan, paths.plan).peak
    assert peak.tflops == 2.0 and peak.source.startswith("measured: ") and "fake 1.2.3" in peak.source


def test_a_run_is_bundled_and_verified_with_all_that_a_real_one_leaves(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, bundle = finished.runs, tmp_path / "run.zip"
    assert main(["evidence", "bundle", "latest", "--runs", str(runs), "--output", str(bundle)]) == 0
    capsys.readouterr()
    assert main(["evidence", "verify", str(bundle), "--plugins", str(PLUGINS), "--json"]) == 0
    (content,) = json.loads(capsys.readouterr().out)["runs"]
    assert content["seal"]["word"] == "sealed" and content["notes"] == []
    reports = ["logs/rank0.imported.json", "logs/rank1.imported.json"]  # the paths of what was imported
    assert content["redacted"] == ["job.json", *reports, "plan.json", "provenance.json", "request.json"]
    names = (f'"{platform.node()}"'.encode(), str(runs).encode(), str(Path.home()).encode() + b"/")
    with zipfile.ZipFile(bundle) as opened:
        assert not [(item, name) for item in opened.namelist() for name in names if name in opened.read(item)]


def test_repeats_are_runs_of_their_own_from_one_plan(train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(decision: Decision, run_id: str, corpus: CorpusFacts | None = None) -> Plan:
        built.append(run_id)
        return resolve(decision, run_id, corpus)

    for name, module in list(sys.modules.items()):
        if name.startswith("levelfield.") and getattr(module, "resolve", None) is resolve:
            monkeypatch.setattr(module, "resolve", counted)
    monkeypatch.setattr(other_use, "HOST_LIMIT", math.inf)  # others use this machine while the tests run
    code, (*results, over) = train("--repeat", "2")
    assert len(built) == 1 and (runs / built[0]).is_dir()
    assert code == 0 and [r["repeat"] for r in results] == [1, 2] and len(list(runs.iterdir())) == 2
    assert over["schema"] == "levelfield.repeats/1" and over["figures"]["loss_tail_mean"]["n"] == 2
    assert results[0]["identity"] == results[1]["identity"]


def test_provenance_says_where_the_run_comes_from(finished: Finished) -> None:
    runs = finished.runs
    content = json.loads(only(runs).provenance.read_text())
    assert content["vendor_software"] == {"driver": "0.0"}
    assert content["environment_packages"]["numpy"] and content["platform"]["pydantic"]
    assert content["variables"]["NCCL_DEBUG"] == "INFO" and content["machine"]["memory_bytes"] > 0
    assert "commit" in content["source"]
    assert [device["index"] for device in content["devices"]] == [0, 1]
    assert content["machine"]["identity"].startswith("sha256:")
    result = json.loads(only(runs).result.read_text())
    assert result["origin"]["machine"] == content["machine"]["identity"] and result["origin"]["packages"]
    assert result["origin"]["implementation"] == load(Plan, only(runs).plan).implementation.rests_on


def test_the_result_has_the_inherited_variables_that_can_change_a_training(
    train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = ("OMP_X", "NCCL_X", "PYTHONX", "XLA_FLAGS", "FLAGS_x", "NVTE_X")
    names = ("LD_AUDIT", "GLIBC_TUNABLES", *libraries, "MY_OWN_SWITCH")
    for name in names:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LD_AUDIT", "/nowhere/audit.so")  # the loader passes over a missing one
    monkeypatch.setenv("SSH_CONNECTION", "1")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")  # is not passed on
    _, (result, *_) = train()
    assert {*names} <= {*result["inherited"]} and not {"SSH_CONNECTION", "PYTHONPATH"} & {*result["inherited"]}
    assert [w for w in result["warnings"] if "LD_AUDIT=/nowhere/audit.so" in w]
    assert "LD_AUDIT=/nowhere/audit.so" in only(runs).report.read_text()


def test_damaged_provenance_gives_no_variables(run: RunPaths) -> None:
    for text in ("", "[]", '{"inherited": [1]}', '{"inherited": null}', "\ufffd"):
        run.provenance.write_text(text)
        assert collect(run).inherited == {}


@pytest.mark.thorough
def test_layouts_start_from_the_same_weights(finished: Finished, train: Run) -> None:
    results = [finished.result, *(train("--layout", layout)[1][0] for layout in ("TP2", "PP2"))]
    assert [str(r["layout"]["data"]) + str(r["layout"]["tensor"]) for r in results] == ["21", "12", "11"]
    assert len({r["identity"]["initial_weights"] for r in results}) == 1 and results[0]["identity"]["initial_weights"]


@pytest.mark.parametrize(
    ("fault", "word", "failure", "evidence"),
    [
        ("nan", "invalid", "non-finite", "rank 1: NonFinite: step 6: the loss is nan; "),
        pytest.param("oom", "oom", "oom", "rank 1: MemoryError: cannot allocate 7 GiB; ", marks=pytest.mark.thorough),
        pytest.param(
            *("unsupported", "unsupported", "unsupported", "rank 1: Unsupported: fp8 needs another chip; "),
            marks=pytest.mark.thorough,
        ),
        # tests/e2e has it too
        pytest.param("die", "failed", "killed", "rank 1 was ended by SIGKILL; ", marks=pytest.mark.thorough),
    ],
)
def test_a_fault_has_its_word_and_keeps_the_steps(
    train: Run, monkeypatch: pytest.MonkeyPatch, fault: str, word: str, failure: str, evidence: str
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    code, (result,) = train()
    status = result["status"]
    assert (code, status["word"], status["failure"]) == (3, word, failure)
    assert status["evidence"].startswith(evidence)
    assert result["steps_done"] >= 5 and result["throughput"] is None


def test_ranks_that_the_first_look_does_not_find_are_named_in_the_locks_with_the_first_step(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has just begun another program shows no variables for a moment: it was never named."""
    looks: list[list[int]] = []
    names: list[list[int]] = []

    def look() -> list[int]:
        looks.append(live_rank_processes())
        return looks[-1] if len(looks) > 1 else []

    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    monkeypatch.setattr("levelfield.run.runner.live_rank_processes", look)
    monkeypatch.setattr(DeviceLocks, "hold_for", lambda self, processes: names.append(list(processes)))
    train()
    assert names[0] == [] and len(names[1]) == 2


def test_a_rank_that_was_suspended_makes_the_window_disturbed(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "stop")
    monkeypatch.setenv("FAKE_SECONDS", "3")
    monkeypatch.setattr(
        "levelfield.run.run_devices.host_counters", lambda ranks_are_children: None
    )  # no load explains it
    code, (result,) = train()
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "invalid", "disturbed")
    slowest, (reason,) = result["disturbance"]["slowest"], result["status"]["reasons"]
    assert slowest["step"] in (6, 7), "the other rank waits for it in the step after"
    assert slowest["seconds"] >= 3 and slowest["began"].endswith("Z") and f"step {slowest['step']} lasted " in reason
    assert result["throughput"] is None


def test_a_worker_whose_clock_is_half_as_fast_has_no_figure(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "clock")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.3")
    code, (result,) = train()
    assert (code, result["status"]["word"], result["throughput"]) == (3, "invalid", None)
    clocks = [reason.split()[:3] for reason in result["status"]["reasons"] if reason.startswith("clock: ")]
    assert ["clock:", "rank", "1"] in clocks and ["clock:", "rank", "0"] not in clocks


def test_a_kill_for_memory_is_oom_and_says_how_that_is_known(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "die")
    kills = MemoryKills(1, "the kernel's log names process 7")
    monkeypatch.setattr("levelfield.node.control_groups.MemoryKillWatch.kills", lambda watch, processes: kills)
    code, (result,) = train()
    assert (code, result["status"]["word"]) == (3, "oom")
    assert result["status"]["evidence"].endswith(str(kills.evidence))


def test_an_environment_that_cannot_be_made_is_a_result(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(argv: list[str], folder: Path, say: object) -> None:
        raise RunFailed("pip ended")

    monkeypatch.setattr("levelfield.run.runtimes.environments._run_installer", refuse)
    monkeypatch.setattr("levelfield.plan.environment.checkout", lambda: runs.parent)
    code = main(["--case", "tiny:fake:F1", "--quiet", "--plugins", str(PLUGINS), "--runs", str(runs)])
    result = json.loads(only(runs).result.read_text())
    assert (code, result["status"]["failure"]) == (3, "environment")
    assert "pip ended" in result["status"]["evidence"]
    assert "failed (environment)" in capsys.readouterr().out


def test_an_interrupt_ends_all_that_was_to_come(train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("levelfield.rundir.follower.Follower.read", interrupt)
    code, results = train("--repeat", "3")
    assert code == 130 and [r["status"]["failure"] for r in results] == ["interrupted"]
    assert len(list(runs.iterdir())) == 1


def test_an_interrupt_after_a_run_has_ended_keeps_its_verdict(
    train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the command all the same: later interrupts are ignored."""
    store = runner._store_and_finish

    def press_and_store(*arguments: Any) -> Any:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return store(*arguments)

    monkeypatch.setattr(runner, "_store_and_finish", press_and_store)
    with interrupt_once():
        code = main(command(runs, "--repeat", "3"))
    assert code == 130 and json.loads(only(runs).result.read_text())["status"]["word"] == "valid"


def test_who_presses_again_and_again_gets_the_same_end(train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*arguments: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)

    def pressing(method: Callable[..., Any]) -> Callable[..., Any]:
        def pressed(*arguments: Any) -> Any:
            press()
            return method(*arguments)

        return pressed

    monkeypatch.setattr("levelfield.rundir.follower.Follower.read", press)
    for name in ("node.rank_processes.Ranks.stop", "node.rank_processes.Ranks.ends", "run.runner.collect"):
        monkeypatch.setattr(f"levelfield.{name}", pressing(pkgutil.resolve_name(f"levelfield.{name}")))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    code, (result,) = train()
    assert code == 130 and result["status"]["failure"] == "interrupted"
    assert json.loads(only(runs).outcome.read_text())["ends"][1]["stopped_by_us"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


AGAIN = """
import atexit, os, signal
from levelfield.cli import main, terminal
from levelfield.rundir.follower import Follower

def press(*given):
    os.kill(os.getpid(), signal.SIGTERM)

Follower.read = press
summary = terminal.Terminal.print_summary
terminal.Terminal.print_summary = lambda *given: (press(), summary(*given))
atexit.register(press)
raise SystemExit(main.run_as_process(ARGUMENTS))
"""


@pytest.mark.drill
def test_a_second_sigterm_after_the_run_does_not_change_its_end(runs: Path) -> None:
    """It killed the process where the result was printed or the process ended."""
    script = AGAIN.replace("ARGUMENTS", repr(command(runs)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "failed (interrupted)" in done.stdout


@pytest.mark.drill
def test_a_hang_up_ends_the_run(train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "read", lambda follower: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)  # not ignored, as it is where tests run by nohup
    try:
        code, (result,) = train()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == 130 and result["status"]["failure"] == "interrupted"


def test_where_ctrl_c_is_ignored_it_stays_so(train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell's background job."""
    read = Follower.read

    def pressed(follower: Follower) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return read(follower)

    monkeypatch.setattr(Follower, "read", pressed)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, (result,) = train()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, result["status"]["word"]) == (0, "valid")


# -- clocks, disks and corpora


@pytest.mark.drill
def test_heartbeats_by_another_clock_end_no_run(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CLOCK", "-60,60")
    code, (result,) = train()
    assert (code, result["status"]["word"]) == (0, "valid")


@pytest.mark.drill
@pytest.mark.parametrize(("free", "says"), [(0, "not-run: the run directory"), (16384, "not-run: ")])
def test_a_disk_that_is_full_before_the_training_is_named_with_the_space_left(
    small_disk: Path, capsys: pytest.CaptureFixture[str], free: int, says: str
) -> None:
    runs = small_disk / "runs"
    runs.mkdir()
    (small_disk / "filler").write_bytes(bytes(2**20 - free - 4096 * 2))
    with suppress(OSError), (small_disk / "rest").open("wb", buffering=0) as rest:
        while os.statvfs(small_disk).f_bavail * 4096 > free:
            rest.write(bytes(4096))
    code = main(command(runs))
    message = " ".join(capsys.readouterr().err.split())
    assert code == 2 and says in message and str(runs) in message
    assert os.strerror(errno.ENOSPC) in message and "bytes and" in message and "files free" in message
    assert not list(runs.glob("*/events/*")) and '"state": "running"' not in "".join(
        path.read_text() for path in runs.glob("*/status.json")
    )


@pytest.mark.parametrize("where", ["rundir.follower.Follower.read", "run.launchers.local.LocalLauncher.execute"])
def test_a_stale_file_handle_during_the_run_is_a_failed_run(
    train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def stale(*arguments: object) -> None:
        while not list(runs.glob("*/events/rank0.jsonl")) and where.endswith("read"):
            time.sleep(0.1)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(runs / "events"))

    monkeypatch.setattr(f"levelfield.{where}", stale)
    code, (result,) = train()
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "storage")
    assert f"{runs / 'events'}: {os.strerror(errno.ESTALE)}" in result["status"]["evidence"]
    ends = json.loads(only(runs).outcome.read_text())["ends"]
    assert len(ends) == (2 if where.endswith("read") else 0), "what the launcher knows is kept"


def test_files_of_the_run_that_are_overwritten_or_removed_lose_nothing_measured(
    train: Run, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("plan.json", "job.json", "request.json", "provenance.json")
    before: dict[str, bytes] = {}

    def damage() -> None:
        for number, name in enumerate(names):
            path = only(runs).root / name
            before[name] = path.read_bytes()
            path.write_text("{") if number % 2 else path.unlink()

    at_step(1, damage, monkeypatch)
    code, (result,) = train()
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "files")
    assert f"{', '.join(names)}: " in result["status"]["evidence"]
    assert result["steps_done"] == 12 and result["seal"]["word"] == "sealed"
    assert before == {name: (only(runs).root / name).read_bytes() for name in names}


def test_a_result_that_cannot_be_computed_is_a_failed_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is damaged after the last look at it: `collect` gives the result once it is mended."""
    plan: list[str] = []

    def damaged(paths: RunPaths) -> Result:
        if not plan:
            plan.append(paths.plan.read_text())
            paths.plan.write_text("{")
        return collect(paths)

    monkeypatch.setattr("levelfield.run.runner.collect", damaged)
    assert main(command(runs)) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert str(only(runs).plan) in message and f"`evidence collect {only(runs).root}`" in message
    only(runs).plan.write_text(plan[0])
    assert main(["evidence", "collect", str(only(runs).root)]) == 0 and collect(only(runs)).status.word == "valid"


@pytest.mark.drill
def test_a_disk_that_becomes_full_has_the_same_word_at_once_and_when_collected(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, rest = small_disk / "runs", small_disk / "rest"

    def fill() -> None:
        with suppress(OSError), rest.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    at_step(3, fill, monkeypatch)
    assert main(command(runs)) == 3
    assert "failed (storage): " in capsys.readouterr().err
    rest.unlink()
    for _ in range(2):
        result = finish(only(runs))
        assert (result.status.word, result.status.failure) == ("failed", "storage")
        assert result.steps_done >= 3
        assert result.seal is not None and "run directory" in str(result.seal.reason)
    assert not only(runs).outcome_of_full_disk.exists()


@pytest.mark.drill
def test_a_disk_that_becomes_read_only_is_a_failed_run_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        at_step(3, lambda: stack.enter_context(read_only(disk)), monkeypatch)
        assert main(command(disk / "runs")) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert f"failed (storage): {disk}" in message and os.strerror(errno.EROFS) in message
    assert "(`dmesg` says" in message and "`evidence collect" in message
    assert finish(only(disk / "runs")).steps_done >= 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus of the tests' case, several times as long as a run."""
    write_megatron(tmp_path / "books", [4000], np.arange(4000) % 60)
    return tmp_path / "books"


def turn_round(corpus: Path) -> None:
    """Overwrite the tokens in place, in reverse order."""
    with Path(f"{corpus}.bin").open("r+b") as file:
        content = np.frombuffer(file.read(), "<u2")[::-1].tobytes()
        file.seek(0)
        file.write(content)


def at_step(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, when the platform has seen this step."""
    real = Follower.read
    acted: list[bool] = []

    def read(follower: Follower) -> list[StepProgress]:
        steps = real(follower)
        if not acted and any(progress.step >= step for progress in steps):
            acted.append(True)
            act()
        return steps

    monkeypatch.setattr(Follower, "read", read)


def test_a_corpus_that_is_overwritten_during_the_run_is_noticed(
    train: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(1, lambda: turn_round(corpus), monkeypatch)
    code, (result,) = train("--data", str(corpus))
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "corpus")
    assert f" run: {corpus}: was overwritten" in result["status"]["evidence"]
    assert result["throughput"] is None


@pytest.mark.thorough
def test_a_corpus_that_is_truncated_during_the_run_is_named(
    train: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULT", "truncate")
    code, (result,) = train("--data", str(corpus))
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "corpus")
    evidence = result["status"]["evidence"]
    assert f"{corpus}.bin: was truncated" in evidence and "8000 to" in evidence and " 0 bytes" in evidence


@pytest.fixture
def own_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests' plugins in a folder of their own, which `train` takes."""
    folder = Path(shutil.copytree(PLUGINS, tmp_path / "own"))
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", folder)
    return folder / "models" / "fake"


def test_code_that_changes_during_the_run_makes_it_invalid(
    train: Run, runs: Path, own_plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the repeat after it, which has the same plan, does not train under the digest of the code before."""
    at_step(3, lambda: (own_plugins / "table.txt").write_text("other"), monkeypatch)
    code, results = train("--repeat", "2")
    first, second = results[:2]
    words = [(r["status"]["word"], r["status"]["failure"]) for r in (first, second)]
    assert code == 3 and words == [("invalid", "code"), ("not-run", "code")]
    assert first["status"]["reasons"][-1].startswith("code: ") and "end sha256:" in first["status"]["reasons"][-1]
    assert f" run: {own_plugins / 'table.txt'}. " in str(first["warnings"])
    assert first["throughput"] is None and second["steps_done"] == 0
    assert second["status"]["evidence"].startswith(f"{own_plugins}") and "has changed" in second["status"]["evidence"]


@pytest.mark.thorough
def test_code_that_goes_away_during_the_run_makes_it_invalid(
    train: Run, own_plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(3, lambda: own_plugins.rename(own_plugins.with_name("gone")), monkeypatch)
    code, (result,) = train()
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "invalid", "code")
    assert "end unreadable" in result["status"]["reasons"][-1]


def test_a_run_keeps_the_digest_of_its_code_at_both_ends(finished: Finished) -> None:
    digests = json.loads(only(finished.runs).outcome.read_text())["code"].values()
    assert [*digests] == [load(Plan, only(finished.runs).plan).implementation.rests_on] * 2


def test_progress_is_told_step_by_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(runs)) == 0
    out, err = capsys.readouterr()
    message = " ".join(err.split())
    assert "--scale smoke" in message
    assert "fp32 matmul" in message and "step 12/12" in message and "loss 1.1297" in message
    assert "\r" not in err and "\x1b" not in err + out
    assert "result   valid" in out and only(runs).root.name in out
    assert [line for line in (out + err).splitlines() if len(line) > 80 and "runs" not in line] == []
