"""Environments: made once, again when they must be, never while in use, and a failure says what the installer said."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from environment_plans import plan, use
from levelfield import installer
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed, UsageError
from levelfield.run.runtimes import environments
from levelfield.run.runtimes.environments import is_ready, use_environment
from levelfield.specs.plan import EnvironmentPlan
from plans import ROOT
from read_only_disk import read_only
from starts.planted_wheels import wheel


class Installer:
    """In place of venv and pip: makes bin/python in no time, and counts."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False

    def __call__(self, argv: list[str], folder: Path, say: object, source: object = None) -> None:
        self.calls.append(argv)
        if self.fails and "pip" in argv:
            raise KeyboardInterrupt
        if "venv" in argv:
            python = Path(argv[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()

    @property
    def made(self) -> int:
        return sum("venv" in argv for argv in self.calls)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Installer:
    planted = Installer()
    monkeypatch.setattr(environments, "_run_installer", planted)
    monkeypatch.setattr(installer, "lacking", lambda folder, made: [])
    return planted


@pytest.mark.parametrize("pip", ["this Python's", pytest.param("its own", marks=pytest.mark.thorough)])
def test_a_real_environment_is_made_with_what_it_needs_and_only_once(
    tmp_path: Path, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "serves_others", lambda: pip != "its own")
    environment = plan(tmp_path, str(wheel(tmp_path)))
    sentences = use(environment)
    assert "fake-cpu (first" in sentences[0] and sentences[-1].startswith("fake-cpu is")
    names = "import acme, importlib.util as i; print(acme.VALUE, i.find_spec('pip') is not None)"
    done = subprocess.run([environment.python, "-c", names], capture_output=True, text=True)
    assert done.stdout == f"42 {pip == 'its own'}\n"
    assert use(environment) == []


@pytest.mark.parametrize(
    ("version", "serves"),
    [("22.3", True), ("23.2.1", True), ("26.0.dev1", True), ("22.2.2", False), ("9.0.1", False), ("x", False)],
)
def test_an_old_pip_installs_into_its_own_environment_only(
    version: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    create, install = installer.environment_commands("/usr/bin/python3", Path("/e"))
    assert ("--without-pip" in create, install[0]) == (serves, sys.executable if serves else "/e/bin/python")
    assert create[0] == "/usr/bin/python3" and create[-1] == "/e" and "install" in install


def test_a_python_without_pip_makes_environments_with_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", lacking)
    assert not installer.serves_others()


def test_a_failing_installer_gives_its_last_words_and_leaves_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, environment = environments._run_installer, plan(tmp_path, str(tmp_path / "absent-1.0-py3-none-any.whl"))

    def without_venv(argv: list[str], folder: Path, say: Say, source: object = None) -> None:
        """The tests' own pip in place of a new environment's, which takes seconds to make."""
        if "venv" in argv:
            return Path(environment.python).parent.mkdir(parents=True)
        words = [word for word in argv[1:] if word not in ("--python", environment.python)]
        return real([sys.executable, *words], folder, say)

    monkeypatch.setattr(environments, "_run_installer", without_venv)
    with pytest.raises(RunFailed) as caught:
        use(environment)
    assert "absent-1.0" in str(caught.value)
    assert caught.value.exit_code == 3 and not is_ready(environment)


def test_changed_requirements_make_it_again(tmp_path: Path, fake: Installer) -> None:
    use(plan(tmp_path, "a==1"))
    assert use(plan(tmp_path, "a==1")) == [] and fake.made == 1
    assert use(plan(tmp_path, "a==2"))[0].endswith("requirements changed): a==2")
    assert fake.made == 2 and not is_ready(plan(tmp_path, "a==1"))


@pytest.mark.parametrize("stamp", [None, "", "{", "[]", "null", '{"digest": null}', "no python"])
def test_a_half_made_one_or_a_damaged_stamp_is_none(tmp_path: Path, fake: Installer, stamp: str | None) -> None:
    environment = plan(tmp_path, "a==1")
    use(environment)
    file = Path(environment.folder) / "levelfield-environment.json"
    if stamp is None:
        file.unlink()
    elif stamp == "no python":
        Path(environment.python).unlink()
    else:
        file.write_text(stamp)
    assert not is_ready(environment)
    use(environment)
    assert fake.made == 2


def test_an_interrupted_installation_counts_as_none(tmp_path: Path, fake: Installer) -> None:
    environment = plan(tmp_path, "a==1")
    fake.fails = True
    with pytest.raises(KeyboardInterrupt):
        use(environment)
    assert not is_ready(environment)
    fake.fails = False
    use(environment)
    assert is_ready(environment)


def test_a_remake_waits_until_the_other_run_has_ended(tmp_path: Path, fake: Installer) -> None:
    old, new = plan(tmp_path, "a==1"), plan(tmp_path, "a==2")
    sentences: list[str] = []
    waiting = threading.Event()

    def say(text: str) -> None:
        sentences.append(text)
        waiting.set()

    def remake() -> None:
        with use_environment(new, say):
            pass

    other = threading.Thread(target=remake)
    with use_environment(old, sentences.append):
        other.start()
        assert waiting.wait(30)
        assert is_ready(old) and fake.made == 1
    other.join(30)
    assert is_ready(new) and fake.made == 2
    assert [text for text in sentences if text.endswith("uses fake-cpu")]


def test_two_runs_use_one_environment_together(tmp_path: Path, fake: Installer) -> None:
    environment = plan(tmp_path, "a==1")
    with use_environment(environment, lambda text: None):
        assert use(environment) == []


PROCESS = """
import sys, time
from pathlib import Path
from levelfield.run.runtimes import environments
from levelfield.specs.plan import EnvironmentPlan

def slow(argv, folder, say, source=None):
    with open(sys.argv[2], "a") as log:
        log.write(f"{'venv' if 'venv' in argv else 'pip'}\\n")
    time.sleep(0.3)
    python = Path(plan.python)
    python.parent.mkdir(parents=True, exist_ok=True)
    python.touch()

environments._run_installer = slow
environments.installer.lacking = lambda folder, made: []
plan = EnvironmentPlan.model_validate_json(Path(sys.argv[1]).read_text())
with environments.use_environment(plan, print):
    assert environments.is_ready(plan)
"""


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan(tmp_path, "a==1").to_json())
    argv = [sys.executable, "-c", PROCESS, str(tmp_path / "plan.json"), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    both = [subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sentences = [process.communicate(timeout=60)[0] for process in both]
    assert [p.returncode for p in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "venv\npip\n"
    assert sum("making" in text for text in sentences) == 1


def test_a_killed_maker_frees_the_lock(tmp_path: Path, fake: Installer) -> None:
    environment = plan(tmp_path, "a==1")
    Path(environment.folder).parent.mkdir()
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); input()"
    argv = [sys.executable, "-c", holder, f"{environment.folder}.lock"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with Path(f"{environment.folder}.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.kill()
    use(environment)
    assert is_ready(environment)


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / ".venvs").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match=r"\.venvs\b.*File exists.*--python"):
        use(plan(tmp_path, "a==1"))


@pytest.mark.parametrize(("python", "ready"), [(sys.executable, True), ("sh", True), ("/no/such/python", False)])
def test_a_given_interpreter_is_used_as_it_is(python: str, ready: bool) -> None:
    environment = EnvironmentPlan(name="given", folder="", python=python, requirements=(), digest="")
    assert is_ready(environment) is ready
    with use_environment(environment, pytest.fail):
        pass


def test_the_installer_is_told_of_but_not_in_full(tmp_path: Path) -> None:
    sentences: list[str] = []
    script = "print('Collecting acme'); print('noise'); print('Installing collected packages: ' + 'acme, ' * 50)"
    environments._run_installer([sys.executable, "-c", script], tmp_path, sentences.append)
    assert sentences[0] == "Collecting acme" and len(sentences) == 2
    assert 110 < len(sentences[1]) <= 120 and sentences[1].endswith("acme, ...")


def test_a_requirement_with_a_condition_is_told_by_its_name(tmp_path: Path, fake: Installer) -> None:
    environment = plan(tmp_path, 'no-such==2; python_version >= "3.9"', 'no-such==1; python_version < "3.9"')
    assert use(environment)[0].endswith("fake-cpu (first use): no-such")


def test_an_environment_on_a_read_only_disk_is_refused_with_its_path(fake: Installer, tmp_path: Path) -> None:
    """With a lock file of an earlier start and without one."""
    environment = plan(tmp_path, "numpy==1.0")
    folder = Path(environment.folder)
    folder.parent.mkdir()
    for has_lock in (False, True):
        if has_lock:
            folder.with_name(f"{folder.name}.lock").touch()
        with (
            read_only(folder.parent),
            pytest.raises(UsageError, match=f"^{folder}.*Read-only.*--python"),
            use_environment(environment, lambda text: None),
        ):
            pass
    assert fake.made == 0
