"""`run status`, `attach` and `cancel`, where the platform lives, was killed, or is another user's or machine's."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.node import process_identity
from levelfield.node.process_identity import identify_process, is_alive
from levelfield.rundir import detached_calls
from levelfield.specs.paths import RunPaths
from plans import PLUGINS

Control = Callable[..., tuple[int, str]]
NOBODY = 65534


@pytest.fixture
def control(run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Control:
    """control(word, ...): the exit code of `run word RUN`, and all that it prints in one line."""
    monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    monkeypatch.setenv("LEVELFIELD_STORE", "none")

    def call(*arguments: str) -> tuple[int, str]:
        code = main(["run", *arguments, "--plugins", str(PLUGINS)])
        captured = capsys.readouterr()
        return code, captured.out if "--json" in arguments else " ".join((captured.out + captured.err).split())

    return call


@pytest.fixture
def platform() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the platform of a run."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def begin(run: RunPaths, process: int, **changes: Any) -> None:
    """Write the status of a run that the process trains; the run has no outcome yet."""
    identity = identify_process(process)
    assert identity
    content = {"phase": "running", "state": "running", "platform": {**asdict(identity), **changes}, "user": "alice"}
    run.status.write_text(json.dumps(content))
    run.outcome.unlink(missing_ok=True)


def test_the_status_of_a_run_that_goes_on(run: RunPaths, control: Control, platform: subprocess.Popen[bytes]) -> None:
    begin(run, platform.pid)
    code, text = control("status", run.root.name, "--json")
    content = json.loads(text)
    assert (code, content["state"], content["step"], content["exit_code"]) == (0, "running", content["steps"], None)
    assert content["platform"]["process"] == platform.pid and content["user"] == "alice"
    assert content["tokens_per_second_per_device"] > 0
    assert run.root.name in control("status")[1]


def test_after_the_platform_was_killed_what_was_measured_is_judged(
    run: RunPaths, control: Control, platform: subprocess.Popen[bytes]
) -> None:
    begin(run, platform.pid)
    platform.kill()
    platform.wait()
    status = control("status", run.root.name)[1]
    assert "state killed" in status and "nothing of the training" in status and "run attach" in status
    code, text = control("attach", run.root.name, "--no-store")
    assert code == 3 and "failed (platform)" in text and run.result.exists()
    assert control("attach", run.root.name)[0] == 3
    assert run.root.name not in control("status")[1]
    assert json.loads(control("status", run.root.name, "--json")[1])["exit_code"] == 3


def test_cancel_interrupts_the_platform_and_waits_for_its_end(
    run: RunPaths, control: Control, platform: subprocess.Popen[bytes]
) -> None:
    begin(run, platform.pid)
    os.kill(platform.pid, 19)  # a stopped process receives the signal, too
    code, text = control("cancel", run.root.name, "--no-store")
    assert code == 0 and platform.wait() == -15
    assert "has ended" in text and run.result.exists()
    assert "has ended before" in control("cancel", run.root.name)[1]


@pytest.mark.parametrize("changes", [{"started": 1}, {"boot": "another"}])
def test_the_number_of_a_process_that_was_used_again_is_not_signalled(
    run: RunPaths, control: Control, platform: subprocess.Popen[bytes], changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("levelfield.rundir.run_state.CHANGE_SECONDS", 0.1)
    begin(run, platform.pid, **changes)
    assert control("cancel", run.root.name, "--no-store")[0] == 0
    assert platform.poll() is None and run.result.exists()


@pytest.mark.parametrize("word", ["cancel", "attach"])
def test_a_run_of_another_host_is_named_and_left(
    run: RunPaths, control: Control, platform: subprocess.Popen[bytes], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.rundir.run_state.CHANGE_SECONDS", 0.1)
    begin(run, platform.pid, host="login2")
    code, text = control(word, run.root.name)
    assert code == 2 and f"process {platform.pid} of host login2" in text
    assert platform.poll() is None and not run.result.exists()
    assert "unseen on login2" in control("status")[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("lives", [True, False])
def test_a_record_of_another_user_ends_no_process_of_this_one(
    run: RunPaths, control: Control, platform: subprocess.Popen[bytes], lives: bool
) -> None:
    begin(run, platform.pid, **({} if lives else {"started": 1}))
    os.chown(run.status, NOBODY, NOBODY)
    code, text = control("cancel", run.root.name)
    assert code == 2 and "nobody" in text and platform.poll() is None and not run.result.exists()


def test_a_hidden_process_of_another_user_is_not_said_to_have_ended(
    platform: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc may be mounted so that each user sees only their own processes."""

    def refuse(process: int, number: int) -> None:
        raise PermissionError

    identity = identify_process(platform.pid)
    assert identity
    monkeypatch.setattr(process_identity, "read_stat_fields", lambda process: [])
    assert is_alive(identity) is False
    monkeypatch.setattr(os, "kill", refuse)
    assert is_alive(identity) is None


# -- detached calls


@pytest.fixture
def call(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> detached_calls.Call:
    """A call of two runs by this process, of which the first was started."""
    monkeypatch.setattr(detached_calls, "_this_call", None)
    planned = [run.root.name, "never-started"]
    made = detached_calls.start_call(run.root.parent, "20260102T030405Z_smoke_facade", planned, [])
    detached_calls.add_run(run.root.name)
    made.stdout.write_text("the result\n")
    made.stderr.write_text("".join(f"line {number}\n" for number in range(30)))
    return made


def give_platform(call: detached_calls.Call, process: int) -> None:
    identity = identify_process(process)
    assert identity
    content = json.loads((call.folder / "call.json").read_text())
    (call.folder / "call.json").write_text(json.dumps({**content, "platform": asdict(identity)}))


def test_a_call_lists_its_runs_and_ends_with_its_code(
    call: detached_calls.Call, run: RunPaths, control: Control
) -> None:
    status = control("status", "facade")[1]
    assert "1 of 2 started" in status and run.root.name in status and "state running" in status
    detached_calls.end_this_call(4)
    code, text = control("attach", "facade")
    assert code == 4 and "the result" in text and "line 29" in text and "line 3 " not in text
    assert "line 3 " in control("log", call.id)[1]
    assert "exit code 4" in control("status", "facade")[1]
    assert call.id not in control("status")[1]


def test_a_killed_call_is_judged_and_names_what_was_not_started(
    call: detached_calls.Call, run: RunPaths, control: Control, platform: subprocess.Popen[bytes]
) -> None:
    begin(run, platform.pid)
    give_platform(call, platform.pid)
    platform.kill()
    platform.wait()
    assert "killed" in control("status", "facade")[1]
    code, text = control("attach", "facade", "--no-store")
    assert code == 3 and "1 of 2 runs were not started" in text and run.result.exists()
    assert json.loads(control("status", "facade", "--json")[1])["exit_code"] == 3


def test_what_another_shell_has_taken_up_is_followed(
    call: detached_calls.Call, run: RunPaths, control: Control, platform: subprocess.Popen[bytes]
) -> None:
    """The call's platform was killed; the one that lives is that of the other `run attach`."""
    begin(run, platform.pid)
    content = json.loads((call.folder / "call.json").read_text())
    content["platform"]["started"] += 1
    (call.folder / "call.json").write_text(json.dumps(content))
    threading.Timer(1.0, platform.kill).start()
    code, text = control("attach", "facade", "--no-store")
    assert code == 3 and "step 12/12" in text and "failed (platform)" in text


def test_a_run_of_a_call_is_cancelled_only_with_it(
    call: detached_calls.Call, run: RunPaths, control: Control, platform: subprocess.Popen[bytes]
) -> None:
    begin(run, platform.pid)
    give_platform(call, platform.pid)
    code, text = control("cancel", run.root.name)
    assert code == 2 and call.id in text and platform.poll() is None
    assert control("cancel", "facade", "--no-store")[0] == 0 and platform.wait() == -15


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"platform": 7, "planned_runs": 3, "exit_code": "x"}'])
def test_a_damaged_record_is_a_call_of_which_little_is_known(
    call: detached_calls.Call, control: Control, damage: str
) -> None:
    (call.folder / "call.json").write_text(damage)
    code, text = control("status", "facade")
    assert code == 0 and call.id in text


def test_two_calls_of_one_part_of_an_id_are_named(call: detached_calls.Call, control: Control) -> None:
    (call.folder.with_name("20260102T030405Z_smoke_facaff")).mkdir()
    (call.folder.with_name("20260102T030405Z_smoke_facaff") / "call.json").write_text("{}")
    code, text = control("status", "smoke")
    assert code == 2 and "2 matching calls" in text and "facaff" in text


def test_detach_beside_a_dry_run_is_refused(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "gpt3_6.7B:torch", "--detach", "--dry-run"]) == 2
    assert "--detach: found --dry-run" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(control: Control, tmp_path: Path) -> None:
    assert control("attach", str(tmp_path))[0] == 2
