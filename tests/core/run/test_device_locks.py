"""Devices are locked while a run uses them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import RunFailed
from levelfield.run.device_locks import DeviceInUse, _locked, devices_locked
from levelfield.specs.plan import Plan
from plans import PLUGINS, make_plan


def plan_of(text: str) -> Plan:
    return make_plan(Registry([PLUGINS]), text, scale="smoke")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("FAKE_DEVICES", "4")
    return tmp_path / "locks"


def test_a_second_run_is_told_who_holds_the_device() -> None:
    first, second = plan_of("tiny:fake:F1:1:2"), plan_of("tiny:fake:F1:1:1")
    taken = pytest.raises(DeviceInUse, match=f"device fake-0 is in use by run {first.run_id}")
    with devices_locked(first), taken, devices_locked(second):
        pytest.fail("both hold it")
    with devices_locked(second):
        pass


def test_a_run_that_gets_one_device_of_two_holds_neither() -> None:
    one, two = plan_of("tiny:fake:F1:1:1"), plan_of("tiny:fake:F1:1:2")
    second = two.model_copy(update={"hardware": two.hardware.model_copy(update={"device_indices": (1, 0)})})
    third = two.model_copy(update={"hardware": two.hardware.model_copy(update={"device_indices": (1,)})})
    with devices_locked(one):
        with pytest.raises(DeviceInUse), devices_locked(second):
            pytest.fail("it got a device that is taken")
        with devices_locked(third):
            pass


def test_the_lock_of_a_killed_process_is_gone(folder: Path) -> None:
    plan = plan_of("tiny:fake:F1:1:1")
    with devices_locked(plan):
        pass
    file = str(folder / "fake-0.lock")
    hold = f"import fcntl, os; file = open({file!r}); fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", hold]).returncode == -9
    with devices_locked(plan):
        pass


def test_a_lock_file_is_everybodys(folder: Path) -> None:
    with devices_locked(plan_of("tiny:fake:F1:1:1")):
        assert stat.S_IMODE((folder / "fake-0.lock").stat().st_mode) == 0o666
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_a_host_that_is_divided_is_not_locked(folder: Path) -> None:
    with devices_locked(plan_of("gpt3_6.7B:torch:cpu:1:2")):
        assert not folder.exists()


def test_locks_that_cannot_be_made_say_where(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    refused = pytest.raises(RunFailed, match=r"fake-0 cannot be locked: .*locks.*set LEVELFIELD_LOCKS")
    with refused, devices_locked(plan_of("tiny:fake:F1:1:1")):
        pytest.fail("it has no lock")


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as another user needs root")
def test_another_user_is_told_and_gets_the_device_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("tiny:fake:F1:1:1")
    with TemporaryDirectory() as folder:  # another user gets into no folder of pytest's
        Path(folder).chmod(0o711)
        monkeypatch.setenv("LEVELFIELD_LOCKS", f"{folder}/locks")
        with devices_locked(plan):
            assert as_another_user() == "taken"
        assert as_another_user() == "held"


def as_another_user() -> str:
    """What user 12345 gets when it opens the lock as the platform does."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(12345)
        try:
            with _locked("fake-0", "another"):
                os.write(write, b"held")
        except DeviceInUse:
            os.write(write, b"taken")
        except BaseException as error:
            os.write(write, repr(error).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read) as said:
        return said.read()
