"""run_benchmarks.py: a suitable Python runs at once, an unsuitable one makes .venv or says what is wrong."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from plans import ROOT

OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python"))


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The entry as a module, with a root of its own."""
    spec = importlib.util.spec_from_file_location("run_benchmarks_under_test", ROOT / "run_benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = tmp_path / ".venv"
    places = {
        "ROOT": tmp_path,
        "LOCK_FILE": tmp_path / "requirements.lock",
        "ENVIRONMENT": environment,
        "STAMP": environment / "levelfield-requirements.sha256",
        "PYTHON": environment / "bin" / "python",
    }
    for name, path in places.items():
        monkeypatch.setattr(module, name, str(path))
    return module


def lock(entry: ModuleType, text: str) -> None:
    Path(entry.LOCK_FILE).write_text(text)


def installed(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def test_the_lock_file_is_read_without_comments_and_with_markers(entry: ModuleType) -> None:
    lock(entry, '# words\n\na==1.0\nb==2 ; python_version >= "3.11"\nc_d==3.post1  # why\n')
    found = list(entry.locked_packages())
    assert found == [("a", "1.0", ""), ("b", "2", 'python_version >= "3.11"'), ("c_d", "3.post1", "")]


def test_markers_choose_by_python(entry: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = 'python_version >= "3.11"', 'python_version < "3.11"'
    for version, expected in (
        ((3, 10, 9), (True, False, True)),
        ((3, 11, 0), (True, True, False)),
        ((3, 14, 0), (True, True, False)),
    ):
        monkeypatch.setattr(entry.sys, "version_info", version)
        assert (entry.holds(""), entry.holds(new), entry.holds(old)) == expected
        monkeypatch.undo()


def test_exactly_the_locked_packages_are_suitable(entry: ModuleType) -> None:
    lock(entry, f"pytest=={installed('pytest')}\n")
    assert entry.is_suitable()
    lock(entry, "pytest==0.1\n")
    assert not entry.is_suitable()
    lock(entry, "no-such-package==1\n")
    assert not entry.is_suitable()


def test_packages_of_other_pythons_do_not_count(entry: ModuleType) -> None:
    other = "<" if sys.version_info >= (3, 11) else ">="
    lock(entry, f'no-such-package==1 ; python_version {other} "3.11"\n')
    assert entry.is_suitable()


def test_the_own_environment_is_suitable_by_its_stamp(entry: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(entry, "no-such-package==1\n")
    Path(entry.ENVIRONMENT).mkdir()
    monkeypatch.setattr(entry.sys, "prefix", entry.ENVIRONMENT)
    assert not entry.is_suitable()
    Path(entry.STAMP).write_text(entry.wanted_stamp())
    assert entry.is_suitable()
    lock(entry, "no-such-package==2\n")
    assert not entry.is_suitable()


@pytest.fixture
def commands(entry: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """In place of venv and pip: what would have been run; venv leaves a python."""
    found: list[list[str]] = []

    def run(argv: list[str]) -> None:
        found.append(argv)
        if "venv" in argv:
            Path(entry.PYTHON).parent.mkdir(parents=True, exist_ok=True)
            Path(entry.PYTHON).touch()

    monkeypatch.setattr(entry, "command", run)
    return found


def test_the_environment_is_made_once_and_again_when_the_lock_changes(
    entry: ModuleType, commands: list[list[str]]
) -> None:
    lock(entry, "a==1\n")
    entry.make_environment()
    assert [argv[:4][-1] for argv in commands] == ["--clear", "install"]
    assert "--no-deps" in commands[1] and entry.LOCK_FILE in commands[1]
    entry.make_environment()
    assert len(commands) == 2
    lock(entry, "a==2\n")
    entry.make_environment()
    assert len(commands) == 4


@pytest.mark.parametrize("missing", ["STAMP", "PYTHON"])
def test_a_half_made_environment_is_made_again(entry: ModuleType, commands: list[list[str]], missing: str) -> None:
    lock(entry, "a==1\n")
    entry.make_environment()
    Path(getattr(entry, missing)).unlink()
    entry.make_environment()
    assert len(commands) == 4


def test_an_installer_that_fails_ends_with_its_last_words(
    entry: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        entry.command([sys.executable, "-c", "import sys; sys.exit('WARNING: old pip\\nERROR: no such version')"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and "this failed: " in error and error.endswith("\n  ERROR: no such version\n")


def test_a_checkout_that_cannot_be_written_says_the_way_out(
    entry: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "ROOT", "/no/such/folder")
    with pytest.raises(SystemExit) as end:
        entry.make_environment()
    assert end.value.code == 2 and "LEVELFIELD_NO_BOOTSTRAP=1" in capsys.readouterr().err


def test_an_unsuitable_python_starts_again_in_the_environment_only_once(
    entry: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def execv(path: str, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr(entry, "is_suitable", lambda: False)
    monkeypatch.setattr(entry, "make_environment", lambda: None)
    monkeypatch.setattr(entry.os, "execv", execv)
    monkeypatch.setattr(entry.sys, "argv", ["run_benchmarks.py", "list"])
    monkeypatch.delenv("LEVELFIELD_NO_BOOTSTRAP", raising=False)
    monkeypatch.setenv("LEVELFIELD_BOOTSTRAPPED", "")
    with pytest.raises(SystemExit):
        entry.main()
    assert started == [[entry.PYTHON, "run_benchmarks.py", "list"]] and os.environ["LEVELFIELD_BOOTSTRAPPED"] == "1"


def test_the_lock_covers_what_the_project_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("]", text.index("dependencies = ["))]
    wanted = {name.lower().replace("_", "-") for name in re.findall(r'"([A-Za-z0-9_.-]+)>=', block)}
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert len(wanted) >= 5 and wanted <= locked


def test_everything_in_the_lock_is_exact_and_its_markers_are_understood() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        requirement, _, marker = line.partition("#")[0].partition(";")
        assert not requirement.strip() or re.fullmatch(r"[\w.-]+==[\w.]+", requirement.strip()), line
        assert marker.strip() in ("", 'python_version >= "3.11"', 'python_version < "3.11"')


@pytest.mark.parametrize("python", OLD_PYTHONS or [None], ids=lambda p: p.parent.parent.name if p else "none")
def test_an_old_python_gets_a_sentence(python: Path | None) -> None:
    if python is None:
        pytest.skip("no Python older than 3.10 lies in ~/.pyenv/versions")
    done = subprocess.run([str(python), str(ROOT / "run_benchmarks.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("levelfield: error: found Python 3.") and "expected 3.10 or newer" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_old_pythons_can_parse_the_entry() -> None:
    ast.parse((ROOT / "run_benchmarks.py").read_text(), feature_version=(3, 7))
