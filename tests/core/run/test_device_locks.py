"""Devices are locked while a run uses them."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import RunFailed
from levelfield.node import device_files
from levelfield.node.device_files import HELD_PREFIX, DeviceInUse, DeviceLocks, lock_folder
from levelfield.node.process_identity import identify_process
from levelfield.run.run_devices import _lock_device, lock_devices
from levelfield.specs.plan import Plan
from plans import PLUGINS, make_plan

NEW_LOCK = f"run new (process {os.getpid()})"


def plan_of(text: str) -> Plan:
    return make_plan(Registry([PLUGINS]), text, scale="smoke")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("FAKE_DEVICES", "4")
    return tmp_path / "locks"


@pytest.mark.drill
def test_a_second_run_is_told_who_holds_the_device() -> None:
    first, second = plan_of("tiny:fake:F1:1:2"), plan_of("tiny:fake:F1:1:1")
    taken = pytest.raises(DeviceInUse, match=f"fake-0.*{first.run_id}")
    with lock_devices(first), taken, lock_devices(second):
        pytest.fail("both hold it")
    with lock_devices(second):
        pass


def test_a_run_that_gets_one_device_of_two_holds_neither() -> None:
    one, two = plan_of("tiny:fake:F1:1:1"), plan_of("tiny:fake:F1:1:2")
    second = two.model_copy(update={"hardware": two.hardware.model_copy(update={"device_indices": (1, 0)})})
    third = two.model_copy(update={"hardware": two.hardware.model_copy(update={"device_indices": (1,)})})
    with lock_devices(one):
        with pytest.raises(DeviceInUse), lock_devices(second):
            pytest.fail("it got a device that is taken")
        with lock_devices(third):
            pass


@pytest.mark.drill
def test_the_lock_of_a_killed_process_is_gone(folder: Path) -> None:
    plan = plan_of("tiny:fake:F1:1:1")
    with lock_devices(plan):
        pass
    file = str(folder / "fake-0.lock")
    hold = f"import fcntl, os; file = open({file!r}); fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", hold]).returncode == -9
    with lock_devices(plan):
        pass


def test_a_lock_file_is_everybodys(folder: Path) -> None:
    with lock_devices(plan_of("tiny:fake:F1:1:1")):
        assert stat.S_IMODE((folder / "fake-0.lock").stat().st_mode) == 0o666
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_the_locks_are_in_one_place_whatever_the_temporary_folder_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEVELFIELD_LOCKS", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # as TMPDIR of a job
    assert lock_folder() == Path("/tmp/levelfield-devices")


def test_a_host_that_is_divided_is_not_locked(folder: Path) -> None:
    with lock_devices(plan_of("gpt3_6.7B:torch:cpu:1:2")):
        assert not folder.exists()


def test_locks_that_cannot_be_made_say_where(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    refused = pytest.raises(RunFailed, match=r"fake-0.*locks.*LEVELFIELD_LOCKS")
    with refused, lock_devices(plan_of("tiny:fake:F1:1:1")):
        pytest.fail("it has no lock")


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as another user needs root")
def test_another_user_is_told_and_gets_the_device_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("tiny:fake:F1:1:1")
    with TemporaryDirectory() as folder:  # another user gets into no folder of pytest's
        Path(folder).chmod(0o711)
        monkeypatch.setenv("LEVELFIELD_LOCKS", f"{folder}/locks")
        with lock_devices(plan):
            assert as_another_user() == "taken"
        assert as_another_user() == "held"


def as_another_user() -> str:
    """What user 12345 gets when it opens the lock as the platform does."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(12345)
        try:
            with _lock_device("fake-0", "another"):
                os.write(write, b"held")
        except DeviceInUse:
            os.write(write, b"taken")
        except BaseException as error:
            os.write(write, repr(error).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read) as text:
        return text.read()


# ---- a process that SIGKILL does not end


@pytest.mark.drill
def test_a_device_stays_locked_while_a_process_lives_that_could_not_be_ended() -> None:
    first, second = plan_of("tiny:fake:F1:1:2"), plan_of("tiny:fake:F1:1:1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with lock_devices(first) as locks:
            locks.hold_for([process.pid])
        says = f"device fake-0 is in use by process {process.pid}, which SIGKILL did not end .* run {first.run_id}"
        for _ in range(2):  # a refused run does not free it
            with pytest.raises(DeviceInUse, match=says), lock_devices(second):
                pytest.fail("it got a device that a process may still use")
        process.kill()
    with lock_devices(second) as locks:
        locks.hold_for([])
    with lock_devices(second):
        pass


def test_a_number_that_another_process_has_now_keeps_no_device(folder: Path) -> None:
    folder.mkdir()
    identity = identify_process(os.getpid())
    assert identity is not None
    for old in (replace(identity, started=identity.started + 1), replace(identity, boot="an earlier boot")):
        (folder / "fake-0.lock").write_text(f"run old (process 1)\n{HELD_PREFIX}{old.to_text()}")
        with _lock_device("fake-0", "new"):
            assert (folder / "fake-0.lock").read_text() == NEW_LOCK


@pytest.mark.parametrize("content", ["\nheld by", "\nheld by a/b/c", "\nheld by a/b/c/d/e", "\n" * 5000, "\x00\n\xff"])
def test_a_damaged_lock_keeps_no_device(content: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "fake-0.lock").write_text(content, encoding="latin-1")
    with _lock_device("fake-0", "new"):
        assert (folder / "fake-0.lock").read_text() == NEW_LOCK


def test_a_full_disk_locks_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile(FileIO):
        write = full  # type: ignore[assignment]

    monkeypatch.setattr(device_files, "FileIO", FullFile)
    with _lock_device("fake-0", "first") as file:
        DeviceLocks([file]).hold_for([os.getpid()])
        with pytest.raises(DeviceInUse, match=r"fake-0.*another run"), _lock_device("fake-0", "second"):
            pytest.fail("both hold it")


# ---- the folder is shared, so anybody may have planted anything there


def test_a_disk_that_became_read_only_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("tiny:fake:F1:1:1")

    def refuse(file: FileIO, size: int | None = None) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    class ReadOnly(FileIO):
        truncate = refuse

    with lock_devices(plan), ReadOnly(str(folder / "fake-0.lock"), "r+") as file:
        DeviceLocks([file]).hold_for([os.getpid()])


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "folder"])
def test_nothing_planted_in_place_of_a_lock_is_opened_or_changed(kind: str, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    victim, lock = tmp_path / "victim", folder / "fake-0.lock"
    if kind != "dangling link":
        victim.write_text("precious")
    {
        "link": lambda: lock.symlink_to(victim),
        "dangling link": lambda: lock.symlink_to(victim),
        "hard link": lambda: lock.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[kind]()
    with pytest.raises(RunFailed, match=r"fake-0\b.*fake-0\.lock"), _lock_device("fake-0", "run"):
        pytest.fail("it was locked")
    assert victim.exists() == (kind != "dangling link")
    assert kind == "dangling link" or (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o644)


def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFailed, match=r"fake-0.*a link"), _lock_device("fake-0", "run"):
        pytest.fail("it was locked")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o700


def test_a_folder_that_was_there_keeps_its_mode(folder: Path) -> None:
    folder.mkdir(mode=0o750)
    before = stat.S_IMODE(folder.stat().st_mode)
    with _lock_device("fake-0", "run"):
        assert stat.S_IMODE(folder.stat().st_mode) == before


def test_what_a_lock_holds_is_shown_without_control_characters(folder: Path) -> None:
    taken = pytest.raises(DeviceInUse)
    with _lock_device("fake-0", "\x1b[2Jrun\x07" + "x" * 500), taken as raised, _lock_device("fake-0", "other"):
        pytest.fail("both hold it")
    text = str(raised.value)
    assert "\x1b" not in text and "\x07" not in text and "[2Jrun" in text and len(text) < 350
