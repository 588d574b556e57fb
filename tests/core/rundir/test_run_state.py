"""Whether a run goes on: by the process that wrote its status, however the clock, the boot or the number changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import StillRunning
from levelfield.node.process_identity import (
    ProcessIdentity,
    identify_process,
    is_alive,
    parse_identity,
)
from levelfield.rundir import directory, run_state
from levelfield.specs.paths import RunPaths


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when it is told to."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def own() -> ProcessIdentity:
    identity = identify_process(os.getpid())
    assert identity is not None and identity.process == os.getpid()
    return identity


# -- identities


def test_a_process_is_alive_until_it_has_ended(other: subprocess.Popen[bytes]) -> None:
    identity = identify_process(other.pid)
    assert identity is not None and is_alive(identity) is True
    other.kill()
    other.wait()
    assert is_alive(identity) is False and identify_process(other.pid) is None


def test_a_process_whose_end_nobody_has_read_is_not_alive(other: subprocess.Popen[bytes]) -> None:
    identity = identify_process(other.pid)
    assert identity is not None
    other.kill()
    deadline = time.monotonic() + 10
    while is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert other.returncode is None and is_alive(identity) is False


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"started": 1}, False),
        ({"boot": "another"}, False),
        ({"host": "another"}, None),
        ({"namespace": "pid:[1]"}, None),
        ({"host": "another", "boot": "another"}, None),
    ],
)
def test_another_start_or_boot_is_another_process_and_another_place_is_not_visible(
    change: dict[str, Any], expected: bool | None
) -> None:
    assert is_alive(replace(own(), **change)) is expected


def test_an_identity_is_read_back_from_both_forms() -> None:
    assert parse_identity(own().to_text()) == parse_identity(asdict(own())) == own()


NO_IDENTITIES: list[object] = [
    None,
    "",
    "a/b",
    "a/b/c/d/e",
    [],
    {},
    {"host": 1},
    7,
    {**asdict(own()), "process": "x"},
]


@pytest.mark.parametrize("content", NO_IDENTITIES)
def test_anything_else_is_no_identity(content: object) -> None:
    assert parse_identity(content) is None


# -- runs


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return directory.create_run(tmp_path / "runs", "one")


def by(run: RunPaths, platform: ProcessIdentity | None, phase: str = "running") -> None:
    """A status that another process wrote."""
    content = {"phase": phase, "state": "running", "platform": platform and asdict(platform)}
    run.status.write_text(json.dumps(content))


@pytest.mark.parametrize("phase", ["made", "environment", "running", "collecting"])
def test_a_run_goes_on_while_its_platform_lives(run: RunPaths, phase: str) -> None:
    by(run, own(), phase)
    with pytest.raises(StillRunning, match=rf"^one .*process {os.getpid()} of .*phase {phase}\)"):
        run_state.refuse_running(run)


@pytest.mark.parametrize("phase", ["done", "ended"])
def test_a_run_that_is_over_is_not_running_though_its_platform_lives(run: RunPaths, phase: str) -> None:
    by(run, own(), phase)
    run_state.refuse_running(run)


def test_a_run_of_a_killed_platform_is_not_running_and_its_status_says_so(run: RunPaths) -> None:
    by(run, replace(own(), started=1))
    run_state.refuse_running(run)
    words = run_state.state_text(run)
    assert words.startswith("running: ") and "was killed;" in words and "`evidence collect`" in words
    directory.correct_stale_statuses(run.root.parent)
    status = json.loads(run.status.read_text())
    assert (status["phase"], status["state"]) == ("ended", "failed") and "platform ended" in status["reason"]
    run_state.refuse_running(run)


def test_the_status_of_a_run_that_goes_on_is_left(run: RunPaths) -> None:
    by(run, own())
    before = run.status.read_bytes()
    directory.correct_stale_statuses(run.root.parent)
    assert run.status.read_bytes() == before


@pytest.mark.parametrize("damage", ["", "{", "[]", "[" * 5000, '{"phase": "running", "platform": 7}', "\xff"])
def test_a_damaged_status_and_one_of_an_earlier_version_are_of_a_run_that_is_over(run: RunPaths, damage: str) -> None:
    run.status.write_text(damage, encoding="latin-1")
    run_state.refuse_running(run)
    directory.correct_stale_statuses(run.root.parent)
    assert run.status.read_text(encoding="latin-1") == damage


@pytest.mark.parametrize("place", [{"host": "another"}, {"boot": "another"}])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_run_of_another_machine_is_known_by_its_files(
    run: RunPaths, goes_on: bool, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that has this one's name, as containers may: its kernel was started at another time."""
    monkeypatch.setattr(run_state, "CHANGE_SECONDS", 0.5)
    by(run, replace(own(), **place))
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            (run.events / "rank0.alive").write_text(str(time.monotonic()))

    beating = threading.Thread(target=beat)
    if goes_on:
        beating.start()
    try:
        if goes_on:
            with pytest.raises(StillRunning, match=f" of {place.get('host', own().host)}, "):
                run_state.refuse_running(run)
        else:
            run_state.refuse_running(run)
        directory.correct_stale_statuses(run.root.parent)
        phase = "running" if goes_on or "host" in place else "ended"
        assert json.loads(run.status.read_text())["phase"] == phase
    finally:
        over.set()
        if goes_on:
            beating.join()


@pytest.mark.parametrize("beats", [True, False])
def test_a_job_that_outlives_its_platform_does_not_hide_that_it_was_killed(
    run: RunPaths, beats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine was started again while the ranks of its job go on, and write, on others."""
    monkeypatch.setattr(run_state, "CHANGE_SECONDS", 0.3)
    monkeypatch.setattr(run_state, "BEAT_SECONDS", 0.02)
    platform = replace(own(), boot="another")
    run.status.write_text(json.dumps({"phase": "running", "platform": asdict(platform), "beats": True}))
    over = threading.Event()

    def train() -> None:
        while not over.wait(0.05):
            (run.events / "rank0.jsonl").write_text(str(time.monotonic()))

    training = threading.Thread(target=train)
    training.start()
    try:
        with run_state.beating(run) if beats else nullcontext():
            assert run_state.was_killed(run, platform) is not beats
    finally:
        over.set()
        training.join()


def test_an_error_of_the_platform_leaves_no_running_status(run: RunPaths) -> None:
    directory.write_status(run, "running", "running")
    with pytest.raises(ZeroDivisionError), directory.status_ended_on_error(run):
        raise ZeroDivisionError
    assert json.loads(run.status.read_text())["phase"] == "ended"
