"""Entries that run at once: where they may, what reaches the terminal, and how each ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.cli.terminal import Terminal
from levelfield.contracts.vendor import Vendor
from levelfield.errors import UsageError
from levelfield.plan.request import Entry, UserRequest
from levelfield.run.interruption import interrupt_once
from levelfield.run.scheduler import Job
from levelfield.run.side_by_side import group_by_entry, require_separate_places, run_groups
from levelfield.specs.plan import Plan
from levelfield.specs.site import Host, LaunchPlan, Site, SlurmSite
from plans import make_plan

CASE = "gpt3_6.7B:torch:cpu:1:1"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Registry(), CASE)


def run_all(at_once: int, **groups: Callable[[], int]) -> tuple[dict[str, int], list[str]]:
    """Run functions as groups. Return the exit codes and the lines."""
    lines: list[str] = []
    none: dict[str, Sequence[Job]] = {name: () for name in groups}
    codes = run_groups(none, at_once, lambda name, jobs: groups[name](), lines.append)
    return codes, lines


def say(text: str, code: int = 0) -> Callable[[], int]:
    def group() -> int:
        os.write(2, text.encode())
        return code

    return group


def test_each_line_is_led_by_its_group_and_one_failure_stops_no_other() -> None:
    def crash() -> int:
        os.write(1, b"half a line")
        raise RuntimeError

    codes, lines = run_all(4, one=say("a\nb\n"), two=say("c\r\n", 3), three=crash, four=say("d\n", 4))
    assert codes == {"one": 0, "two": 3, "three": 5, "four": 4}
    assert sorted(lines) == ["four: d", "one: a", "one: b", "two: c\r"]


def test_the_lines_of_an_entry_leave_room_for_its_name_and_its_error_is_a_sentence() -> None:
    def fail(narrow: Terminal) -> int:
        narrow.say("word " * 60)
        raise UsageError("a key is wrong")

    groups, lines, terminal = {"an entry of a name with 34 letters": ()}, list[str](), Terminal()
    codes = run_groups(groups, 1, lambda name, jobs: terminal.run_entry(name, fail), lines.append)
    *said, error = [line.partition(": ")[2] for line in lines]
    assert len(said) > 5 and max(map(len, lines)) <= 80
    assert list(codes.values()) == [2] and error == "levelfield: error: a key is wrong"


def test_a_line_that_arrives_in_parts_is_written_once() -> None:
    def slow() -> int:
        for part in (b"12", b"34", b"\n"):
            os.write(2, part)
            time.sleep(0.3)
        return 0

    assert run_all(2, slow=slow, other=say("x\n"))[1] == ["other: x", "slow: 1234"]


def test_a_group_that_is_killed_is_named_with_its_signal() -> None:
    def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    codes, lines = run_all(2, one=die, two=say("x\n"))
    assert codes == {"one": -9, "two": 0} and sorted(lines) == ["one: its process was ended by SIGKILL", "two: x"]


def test_a_process_that_outlives_its_group_holds_nothing_up() -> None:
    def leave() -> int:
        subprocess.Popen(["sleep", "30"])
        return 0

    began = time.monotonic()
    assert run_all(1, one=leave)[0] == {"one": 0} and time.monotonic() - began < 15


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_run_than_were_asked_for(tmp_path: Path, at_once: int) -> None:
    def count() -> int:
        mark = tmp_path / str(os.getpid())
        mark.touch()
        time.sleep(0.5)
        code = len(list(tmp_path.iterdir()))
        mark.unlink()
        return code

    codes, _ = run_all(at_once, one=count, two=count, three=count)
    assert max(codes.values()) == at_once


def test_begin_and_end_are_told_and_no_group_begins_after_a_refusal() -> None:
    told: list[str] = []
    none: dict[str, Sequence[Job]] = dict.fromkeys(("one", "two", "three", "four"), ())

    def begin(name: str) -> bool:
        told.append(f"begin {name}")
        return name != "three"

    codes = run_groups(none, 1, lambda name, jobs: 0, told.append, begin, lambda name: told.append(f"end {name}"))
    assert told == ["begin one", "end one", "begin two", "end two", "begin three"] and codes == {"one": 0, "two": 0}


def test_what_runs_is_interrupted_where_an_end_cannot_be_recorded() -> None:
    def record(name: str) -> None:
        raise OSError("the disk is full")

    def wait(name: str, jobs: Sequence[Job]) -> int:
        try:
            time.sleep(30 if name == "slow" else 0)
        except KeyboardInterrupt:
            os.write(pipe[1], b"judged")
        return 0

    pipe = os.pipe()
    with pytest.raises(OSError, match="full"):
        run_groups({"slow": (), "quick": ()}, 2, wait, print, end=record)
    assert os.read(pipe[0], 10) == b"judged"


def test_an_interrupt_reaches_all_that_run_and_starts_no_other() -> None:
    """Each judges what it has: here it says so."""

    def judge(interrupts: bool) -> Callable[[], int]:
        def group() -> int:
            try:
                os.write(2, b"runs\n")
                time.sleep(1)
                if interrupts:
                    os.kill(os.getppid(), signal.SIGINT)
                time.sleep(30)
            except KeyboardInterrupt:
                os.write(2, b"judged\n")
                return 130
            return 0

        return group

    with interrupt_once():
        codes, lines = run_all(2, one=judge(True), two=judge(False), three=say("never\n"))
    assert codes == {"one": 130, "two": 130, "three": 130}
    assert sorted(lines) == ["one: judged", "one: runs", "two: judged", "two: runs"]


# ---- where entries may run at once


def job(plan: Plan, vendor: Vendor | None = None, text: str = CASE, **hardware: object) -> Job:
    changed = plan.model_copy(update={"hardware": plan.hardware.model_copy(update=hardware)})
    return Job(changed, vendor, Entry(text, UserRequest()))  # type: ignore[arg-type]


def launched(plan: Plan, *hosts: str) -> Job:
    launch = LaunchPlan(launcher="any", site=Site(), hosts=tuple(Host(name=host) for host in hosts))
    return job(plan.model_copy(update={"launch": launch}))


def test_groups_that_share_nothing_may_run_at_once(plan: Plan) -> None:
    indices = {"vendor": "nvidia", "device_indices": (0, 1)}
    for one, two in (
        (launched(plan), launched(plan)),  # an engine places them
        (launched(plan, "gpu1", "gpu2"), launched(plan, "gpu3")),
        (job(plan, **indices), job(plan, vendor="nvidia", device_indices=(2, 3))),  # type: ignore[arg-type]
        (job(plan.model_copy(update={"refusal": "not here"})), job(plan)),
    ):
        require_separate_places({"one": [one], "two": [two]})


def test_groups_that_share_a_place_are_refused_with_its_name(plan: Plan) -> None:
    for one, two, place in (
        (job(plan), job(plan), "the processors of this machine"),
        (launched(plan, "gpu1", "gpu2"), launched(plan, "gpu2"), "host gpu2"),
    ):
        with pytest.raises(UsageError, match=f"'one' and 'two' both on {place}"):
            require_separate_places({"one": [one], "two": [two]})
    require_separate_places({"one": [job(plan), job(plan)]})  # repeats run one after another


def test_an_engine_that_may_share_nodes_is_refused_with_what_to_set(plan: Plan) -> None:
    def on_slurm(**slurm: bool) -> Job:
        launch = LaunchPlan(launcher="slurm", site=Site(slurm=SlurmSite(**slurm)))
        return job(plan.model_copy(update={"launch": launch}))

    with pytest.raises(UsageError, match=r"slurm\.exclusive is false .* set it to true"):
        require_separate_places({"one": [on_slurm()], "two": [on_slurm()]})
    require_separate_places({"one": [on_slurm(exclusive=True)], "two": [on_slurm(exclusive=True)]})
    require_separate_places({"one": [on_slurm()]})


def test_repeats_are_one_group_and_equal_entries_have_names_of_their_own(plan: Plan) -> None:
    first, second = job(plan), job(plan)
    groups = group_by_entry([first, Job(first.plan, first.vendor, first.entry), second])
    assert {name: len(jobs) for name, jobs in groups.items()} == {CASE: 2, f"{CASE} #2": 1}


def test_entries_of_one_machine_are_refused_before_any_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--case", CASE, "--case", "gpt3_6.7B:torch:cpu:1:2", "--runs", str(tmp_path))
    assert main([*command, "--parallel", "2"]) == 2
    assert "both on the processors of this machine" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--parallel", "0"]) == 2 and "--parallel: found 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
