"""The local launcher with real processes: each way to end has its outcome, and none leaves a process behind."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from freezer import Freezer
from levelfield.contracts.execution import NodeWork, Outcome, ProcessWork, Request
from levelfield.node import rank_processes
from levelfield.run.launchers import local
from levelfield.run.launchers.launched_ranks import find_free_port
from levelfield.run.launchers.local import LocalLauncher

MARK = "LEVELFIELD_TEST_MARK"
LONG = "import time\ntime.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready{rank}', 'w')\n" + LONG
BEATING = (
    "import pathlib, time\nwhile True:\n    pathlib.Path('events/rank{rank}.alive').touch()\n    time.sleep(0.05)\n"
)
PARENT = (
    "import os, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open('pid{rank}', 'w').write(str(child.pid))\n"
    "os.rename('pid{rank}', 'ready{rank}')\n"  # it is whole once it has this name
)


class Drill:
    """Starts scripts as ranks in a folder, and finds what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        (folder / "events").mkdir()

    def execute(self, *scripts: str, watch: Callable[[], None] = lambda: None, **limits: float) -> Outcome:
        processes = tuple(self._process(rank, script) for rank, script in enumerate(scripts))
        return LocalLauncher().execute(self.request(processes, **limits), watch)

    def request(
        self,
        processes: tuple[ProcessWork, ...],
        start_seconds: float = 60.0,
        step_seconds: float = 60.0,
        heartbeat_seconds: float = 60.0,
    ) -> Request:
        nodes, events = (NodeWork(0, "127.0.0.1", processes),), str(self.folder / "events")
        return Request("local", "process", nodes, events, start_seconds, step_seconds, heartbeat_seconds)

    def _process(self, rank: int, script: str) -> ProcessWork:
        prologue = f"import os\nos.chdir({str(self.folder)!r})\n"
        argv = (sys.executable, "-S", "-c", prologue + script.replace("{rank}", str(rank)))
        environment = {MARK: self.mark, "MASTER_PORT": "{port}"}
        return ProcessWork(rank, argv, environment, str(self.folder / f"rank{rank}.log"))

    def left(self) -> list[psutil.Process]:
        """Processes, children's children too, that still run; one that dies just now gets a moment."""
        wait_until(lambda: not list(self.running()))
        return list(self.running())

    def running(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:
                continue

    def when(self, path: str, act: Callable[[], None]) -> Callable[[], None]:
        """A watch that acts once, as soon as the file is there."""
        acted: list[bool] = []

        def watch() -> None:
            if not acted and (self.folder / path).exists():
                acted.append(True)
                act()

        return watch

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank whose script is BEATING."""
        for process in self.running():
            if f"rank{rank}.alive" in " ".join(process.cmdline()):
                process.send_signal(number)


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drill]:
    monkeypatch.setattr(rank_processes, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(rank_processes, "TERMINATE_SECONDS", 1.0)
    monkeypatch.setattr(rank_processes, "KILL_SECONDS", 0.5)
    monkeypatch.setattr(rank_processes, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(local, "POLL_SECONDS", 0.02)
    ranks = Drill(tmp_path)
    yield ranks
    assert ranks.left() == []


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether the condition came true before long."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def has_ended(pid: int) -> bool:
    """Also while nobody has asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def interrupt() -> None:
    raise KeyboardInterrupt


def ends(outcome: Outcome) -> list[tuple[int | None, int | None, bool]]:
    return [(e.exit_code, e.signal, e.stopped_by_us) for e in outcome.ends]


def test_all_ranks_that_end_well(drill: Drill) -> None:
    outcome = drill.execute("print('one', flush=True)", "import sys; print('two', file=sys.stderr)")
    assert (outcome.cause, outcome.evidence) == ("exited", None)
    assert ends(outcome) == [(0, None, False), (0, None, False)]
    assert [(drill.folder / f"rank{r}.log").read_text() for r in (0, 1)] == ["one\n", "two\n"]


def test_ranks_share_one_free_port(drill: Drill) -> None:
    drill.execute(*["print(os.environ['MASTER_PORT'])"] * 2)
    ports = {(drill.folder / f"rank{r}.log").read_text().strip() for r in (0, 1)}
    assert len(ports) == 1 and 1024 < int(ports.pop()) < 65536


def test_a_rank_that_fails_is_named_and_the_others_are_stopped(drill: Drill) -> None:
    outcome = drill.execute(LONG, "raise SystemExit(7)")
    assert outcome.cause == "rank-failed" and str(outcome.evidence).startswith("rank 1 ")
    assert str(outcome.evidence).endswith("code 7")
    assert ends(outcome) == [(None, signal.SIGTERM, True), (7, None, False)]


def test_a_rank_that_fails_last_is_named_too(drill: Drill) -> None:
    outcome = drill.execute("", "import time; time.sleep(0.3); raise SystemExit(1)")
    assert outcome.cause == "rank-failed" and str(outcome.evidence).startswith("rank 1 ")
    assert str(outcome.evidence).endswith("code 1")
    assert ends(outcome) == [(0, None, False), (1, None, False)]


def test_the_other_ranks_have_a_moment_for_their_own_words(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_processes, "SETTLE_SECONDS", 30.0)
    outcome = drill.execute(
        "import time; time.sleep(0.3); print('peer gone'); raise SystemExit(1)", "raise SystemExit(1)"
    )
    assert ends(outcome) == [(1, None, False), (1, None, False)]
    assert (drill.folder / "rank0.log").read_text() == "peer gone\n"


def test_a_rank_killed_from_outside_is_named_with_the_signal(drill: Drill) -> None:
    watch = drill.when("events/rank1.alive", lambda: drill.signal(1, signal.SIGKILL))
    outcome = drill.execute(LONG, BEATING, watch=watch)
    assert outcome.cause == "rank-failed" and str(outcome.evidence).startswith("rank 1 ")
    assert str(outcome.evidence).endswith(" SIGKILL")
    assert ends(outcome) == [(None, signal.SIGTERM, True), (None, signal.SIGKILL, False)]


def test_a_stopped_rank_is_a_hang_and_ends_as_well(drill: Drill) -> None:
    watch = drill.when("events/rank1.alive", lambda: drill.signal(1, signal.SIGSTOP))
    outcome = drill.execute(BEATING, BEATING, watch=watch, heartbeat_seconds=2.0)
    assert outcome.cause == "hang"
    assert str(outcome.evidence).startswith("rank 1 ") and "no heartbeat" in str(outcome.evidence)
    assert ends(outcome) == [(None, signal.SIGTERM, True)] * 2  # asked, and continued so that it could hear it


def test_ranks_that_never_begin_are_a_hang(drill: Drill) -> None:
    outcome = drill.execute(LONG, start_seconds=0.3)
    assert outcome.cause == "hang" and "first step" in str(outcome.evidence)
    assert re.findall(r"[\d.]+ s\b", str(outcome.evidence)) == ["0 s", "0.3 s"]


def test_a_rank_that_ignores_sigterm_is_killed(drill: Drill) -> None:
    outcome = drill.execute(STUBBORN, watch=drill.when("ready0", interrupt))
    assert ends(outcome) == [(None, signal.SIGKILL, True)]


@pytest.mark.parametrize(
    ("script", "cause"),
    [(PARENT + LONG, "interrupted"), (PARENT + "raise SystemExit(1)", "rank-failed"), (PARENT, "exited")],
)
def test_children_of_a_rank_are_ended_with_it(drill: Drill, script: str, cause: str) -> None:
    watch = drill.when("ready0", interrupt) if cause == "interrupted" else lambda: None
    outcome = drill.execute(script, watch=watch)
    assert outcome.cause == cause
    child = int((drill.folder / "ready0").read_text())
    assert drill.left() == []
    assert wait_until(lambda: has_ended(child))


def test_an_interrupt_stops_every_rank(drill: Drill) -> None:
    outcome = drill.execute(BEATING, BEATING, watch=drill.when("events/rank1.alive", interrupt))
    assert outcome.cause == "interrupted"
    assert all(e.stopped_by_us for e in outcome.ends) and len(outcome.ends) == 2


def test_a_second_interrupt_while_stopping_leaves_no_process(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.killpg
    raised: list[bool] = []

    def impatient(group: int, number: int) -> None:
        real(group, number)
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "killpg", impatient)
    with pytest.raises(KeyboardInterrupt):
        drill.execute(BEATING, STUBBORN, watch=drill.when("ready1", interrupt))


def test_a_fault_in_the_watch_leaves_no_process(drill: Drill) -> None:
    def fault() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drill.execute(BEATING, watch=drill.when("events/rank0.alive", fault))


def test_a_rank_that_cannot_be_started_ends_those_that_were(drill: Drill) -> None:
    first = drill._process(0, LONG)
    second = ProcessWork(1, ("/no/such/python",), {MARK: drill.mark}, str(drill.folder / "rank1.log"))
    outcome = LocalLauncher().execute(drill.request((first, second)), lambda: None)
    reason = os.strerror(errno.ENOENT)
    assert (outcome.cause, outcome.evidence) == ("launch-error", f"/no/such/python: {reason}")
    assert [(e.rank, e.stopped_by_us) for e in outcome.ends] == [(0, True)]


def test_a_log_that_cannot_be_written_is_a_launch_error(drill: Drill) -> None:
    work = ProcessWork(0, (sys.executable, "-c", ""), {}, str(drill.folder / "absent" / "rank0.log"))
    outcome = LocalLauncher().execute(drill.request((work,)), lambda: None)
    assert outcome.cause == "launch-error" and "absent/rank0.log: " in (outcome.evidence or "")


def test_ctrl_c_reaches_the_platform_alone(drill: Drill) -> None:
    drill.execute("print(os.getsid(0), os.getpid())")
    session, process = (drill.folder / "rank0.log").read_text().split()
    assert session == process != str(os.getsid(0))


def test_watch_sees_the_last_words(drill: Drill) -> None:
    seen: list[bool] = []
    drill.execute("open('last', 'w')", watch=lambda: seen.append((drill.folder / "last").exists()))
    assert seen[-1]


# -- ranks that SIGKILL does not end


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """SIGKILL to a group does nothing, as with a process that its driver holds in the kernel. Gives those groups."""
    real, groups = os.killpg, []

    def killpg(group: int, number: int) -> None:
        groups.append(group) if number == signal.SIGKILL else real(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    yield groups
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            real(group, signal.SIGKILL)


def test_a_rank_that_cannot_be_killed_is_left_and_named(drill: Drill, unkillable: list[int]) -> None:
    before = time.monotonic()
    outcome = drill.execute(STUBBORN, LONG, watch=drill.when("ready0", interrupt))
    assert time.monotonic() - before < 20 and outcome.cause == "interrupted"
    first, second = outcome.ends
    assert (first.process, first.state) == (unkillable[0], "S") and first.stopped_by_us
    assert (second.process, second.signal) == (None, signal.SIGTERM)
    assert outcome.to_dict()["ends"][0]["process"] == first.process and "process" not in outcome.to_dict()["ends"][1]


def test_a_rank_that_cannot_be_killed_is_waited_for_once(drill: Drill, unkillable: list[int]) -> None:
    ranks = rank_processes.Ranks()
    process = drill._process(0, STUBBORN)
    ranks.start(0, list(process.argv), {**os.environ, **process.environment}, process.log)
    assert wait_until((drill.folder / "ready0").exists)
    ranks.stop()
    before = time.monotonic()
    ranks.stop()
    assert time.monotonic() - before < 0.4 and ranks.ends()[0]["process"] == unkillable[0]


@pytest.mark.drill
@pytest.mark.parametrize("pressed", [False, True], ids=["hang", "ctrl-c"])
def test_a_frozen_rank_keeps_neither_the_platform_nor_ctrl_c(drill: Drill, pressed: bool) -> None:
    freezer = Freezer()

    def freeze() -> None:
        (frozen,) = [p for p in drill.running() if "rank1.alive" in " ".join(p.cmdline())]
        freezer.freeze(frozen.pid)
        if pressed:
            interrupt()

    try:
        watch = drill.when("events/rank1.alive", freeze)
        outcome = drill.execute(BEATING, BEATING, watch=watch, heartbeat_seconds=2.0)
        end = outcome.ends[1]
        assert outcome.cause == ("interrupted" if pressed else "hang")
        assert end.process is not None and end.state == "D" and psutil.pid_exists(end.process)
        assert outcome.ends[0].process is None and outcome.ends[0].stopped_by_us
    finally:
        freezer.remove()
    assert wait_until(lambda: has_ended(end.process or 0)), "the SIGKILL waited for it"


# -- the port at which the ranks of one machine meet


def given_by_the_kernel(folder: Path, text: str) -> Path:
    file = folder / "ip_local_port_range"
    file.write_text(text)
    return file


def test_the_kernel_gives_it_to_no_connection(tmp_path: Path) -> None:
    file = given_by_the_kernel(tmp_path, "20000\t60999\n")
    assert all(10_000 <= find_free_port(file) < 20_000 for _ in range(20))


def test_processes_of_one_seed_choose_their_own(tmp_path: Path) -> None:
    file = given_by_the_kernel(tmp_path, "32768\t60999\n")
    chosen = set()
    for _ in range(5):
        random.seed(1)
        chosen.add(find_free_port(file))
    assert len(chosen) > 1


def test_a_port_in_use_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = given_by_the_kernel(tmp_path, "32768\t60999\n")
    first, second = find_free_port(file), find_free_port(file)
    answers = iter([first, first, second])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda self, low, high: next(answers))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        assert find_free_port(file) == second


@pytest.mark.parametrize("text", ["1024 65535", "", "no numbers here"])
def test_a_range_that_leaves_none_gives_a_free_one(tmp_path: Path, text: str) -> None:
    with socket.socket() as probe:
        probe.bind(("", find_free_port(given_by_the_kernel(tmp_path, text))))


def test_without_the_file(tmp_path: Path) -> None:
    assert find_free_port(tmp_path / "missing") > 0
