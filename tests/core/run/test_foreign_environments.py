"""Environments in a place where something else is, in use, of another user, or sent elsewhere by pip's settings."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from environment_plans import PIP, maker, plan, use
from levelfield import environment_folder, installer
from levelfield.errors import RunFailed, UsageError
from levelfield.run.runtimes.environments import is_ready
from plans import ROOT
from starts.planted_wheels import wheel

SLOW = "for folder; do :; done\nsleep 60 &\ntouch $folder/begun\nsleep 60\n"


def test_a_folder_that_levelfield_did_not_make_is_left_as_it_is(tmp_path: Path) -> None:
    environment = plan(tmp_path)
    file = Path(environment.folder) / "pyvenv.cfg"
    file.parent.mkdir(parents=True)
    file.write_text("mine\n")
    says = r"fake-cpu: found an environment that Levelfield did not make.*move it.*Or give an interpreter with --python"
    with pytest.raises(UsageError, match=says):
        use(environment)
    assert file.read_text() == "mine\n" and [p.name for p in file.parent.iterdir()] == ["pyvenv.cfg"]


@pytest.mark.parametrize("name", [environment_folder.MARK, *environment_folder.STAMPS])
def test_a_mark_or_the_stamp_of_an_earlier_version_is_enough(tmp_path: Path, name: str) -> None:
    """A killed start leaves the mark and no stamp; earlier versions left a stamp and no mark."""
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / name).touch()
    (tmp_path / "e" / "lib").mkdir()
    environment_folder.make_empty(tmp_path / "e")
    assert [path.name for path in (tmp_path / "e").iterdir()] == [environment_folder.MARK]


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(tmp_path: Path) -> None:
    environment = plan(tmp_path)
    lock = Path(f"{environment.folder}.lock")
    lock.parent.mkdir()
    (tmp_path / "thesis.tex").write_text("precious")
    lock.symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(UsageError, match=r"fake-cpu\.lock\b.*a link"):
        use(environment)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_lock_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("words")
    os.close(environment_folder.opened_lock(tmp_path / "a.lock"))
    assert (tmp_path / "a.lock").read_text() == "words"


def test_no_module_opens_a_lock_by_emptying_it() -> None:
    """All go through environment_folder.opened_lock, but a node's own part, which is sent as one file."""
    files = [path for path in (ROOT / "platform/levelfield").rglob("*.py") if "fcntl.flock" in path.read_text()]
    emptying = {path.name for path in files if re.search(r"""open\(["']w["']\)""", path.read_text())}
    assert len(files) >= 6 and emptying == {"node_setup.py"}


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_complete_environment_is_used_where_nothing_can_be_written(
    tmp_path: Path, has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = plan(tmp_path)
    python = Path(environment.python)
    python.parent.mkdir(parents=True)
    python.touch()
    (Path(environment.folder) / "levelfield-environment.json").write_text(json.dumps({"digest": environment.digest}))
    if has_lock:
        Path(f"{environment.folder}.lock").touch()
    nothing_can_be_written(monkeypatch)
    use(environment)


@pytest.mark.parametrize("there", ["nothing", "a pipe", "a link"])
def test_a_lock_that_cannot_be_written_says_why(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again to read only, which must not hide the reason, nor take a pipe or a link."""
    lock = tmp_path / "a.lock"
    if there == "a pipe":
        os.mkfifo(lock)
    if there == "a link":
        lock.symlink_to(tmp_path / "other")
    nothing_can_be_written(monkeypatch)
    says = {"nothing": "Permission denied", "a pipe": "found no plain file", "a link": "found a link"}
    with pytest.raises(OSError, match=says[there]):
        environment_folder.opened_lock(lock)


def nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another user's folder; root may write everywhere."""
    real = os.open

    def refusing(path: str, flags: int, *more: int, **keys: object) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *more, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.drill
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough)])
def test_a_signal_that_ends_the_maker_ends_its_installer(tmp_path: Path, number: int) -> None:
    environment, process = maker(tmp_path, SLOW)
    folder = Path(environment.folder)
    with process:
        deadline = time.monotonic() + 30
        while not (folder / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(installer._marked(folder)) >= 2
        process.send_signal(number)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
    left = installer._marked(folder)
    installer.end_leftover_installer(folder)
    assert left == []


# -- pip's settings


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Install a wheel as an environment is made, here into a folder; return whether it is there."""
    monkeypatch.setenv(installer.WHEELS, str(wheel(folder).parent))
    argv = [*PIP, "install", "--quiet", "--no-deps", "--target", str(folder / "site"), "acme==1.0"]
    installer.run(argv, folder / "site", lambda line: None)
    return (folder / "site/acme.py").exists()


def test_variables_by_which_pip_installs_nothing_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone would do."""
    for name in ("PIP_VERSION", "PYTHONHOME", "PIP_DRY_RUN", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.setenv(name, "1")
    assert installed(tmp_path, monkeypatch)


def test_switches_of_a_pip_conf_are_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[install]\ndry-run = true\nuser = true\n[global]\nrequire-virtualenv = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert installed(tmp_path, monkeypatch)


@pytest.mark.parametrize("line", ["[global]\ntarget = /x", "[install]\nPrefix=/x", "[install]\n--root: /x"])
def test_a_pip_conf_that_names_another_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "pip.conf").write_text(line)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(UsageError, match=r"pip.conf:.*`\w+`.*\[\w+\].*PIP_CONFIG_FILE=/dev/null"):
        installer.run([*PIP, "install", "acme==1.0"], tmp_path, lambda line: None)


def test_packages_that_are_not_there_are_named(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "acme_one-1.0.dist-info").mkdir(parents=True)
    (site / "acme_one-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: acme_one\nVersion: 1.0\n")
    (site / "acme_one-1.0.dist-info/RECORD").write_text("acme_one.py,,\n")
    environment = ["Acme.One[extra]==1.0", "other==2", "/a/file.whl", "not-pinned"]
    assert installer.lacking(tmp_path, environment) == ["other"]
    assert installer.lacking(tmp_path, environment, with_files=True) == ["Acme.One", "other"]


def test_an_installer_that_installs_nothing_makes_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "run", lambda argv, folder, say, source=None: None)
    with pytest.raises(RunFailed, match="lacks acme"):
        use(plan(tmp_path))
    assert not is_ready(plan(tmp_path))
