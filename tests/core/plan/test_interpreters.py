"""The Python of an environment: this one or another that fits, whatever else of its name lies about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from levelfield import installer
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.plan import environment as environment_module
from levelfield.plan.environment import Interpreter, find_interpreter, plan_environment
from levelfield.run.runtimes import environments
from levelfield.run.runtimes.environments import use_environment
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import EnvironmentPlan
from levelfield.specs.requirements import Requirements, takes_python

OWN = sys.version_info[:2]
OTHER = "3.29"  # no machine has it


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no Python but this one: nothing on PATH, and an empty home."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    return tmp_path


def plant(folder: Path, script: str, version: str = OTHER) -> str:
    """A file named as Python `version` would be; returns its path."""
    path = folder / f"python{version}"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_running_python_is_taken_if_it_fits(machine: Path) -> None:
    plant(machine / "first", "exit 1", "{}.{}".format(*OWN))
    assert find_interpreter(">=3.10") == Interpreter(sys.executable, OWN)


PLACES = [
    "first",
    "second",
    f"home/.pyenv/versions/{OTHER}.1/bin",
    f"home/.local/share/uv/python/cpython-{OTHER}.1-linux-x86_64-gnu/bin",
]


@pytest.mark.parametrize("place", PLACES)
def test_another_python_is_found_where_pythons_lie(machine: Path, place: str) -> None:
    path = plant(machine / place, f"echo {OTHER}")
    assert find_interpreter(f"=={OTHER}.*") == Interpreter(path, (3, 29))


def test_a_pyenv_that_lies_elsewhere_is_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(machine / "pyenv"))
    path = plant(machine / "pyenv" / "versions" / f"{OTHER}.0" / "bin", f"echo {OTHER}")
    assert find_interpreter(f"=={OTHER}.*").python == path


def test_the_newest_that_fits_is_taken(machine: Path) -> None:
    plant(machine / "first", "echo 3.28", "3.28")
    newest = plant(machine / "home/.pyenv/versions/3.29.0/bin", "echo 3.29")
    plant(machine / "first", "echo 3.30", "3.30")
    assert find_interpreter(">=3.28,<3.30").python == newest


FAULTS = {
    "a shim that fails": ("exit 127", "fails (exit code 127)"),
    "another version": ("echo 3.8", "says that it is '3.8'"),
    "without venv": (
        "echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1",
        "fails (ModuleNotFoundError: No module named 'ensurepip')",
    ),
    "silent": ("exit 0", "says that it is ''"),
    "never answers": ("exec sleep 60", "does not start (TimeoutExpired)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_of_no_use_is_passed_over_and_named_where_there_is_no_other(
    machine: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(environment_module, "ANSWER_SECONDS", 0.5 if fault == "never answers" else 30)
    monkeypatch.setenv("PATH", f"{machine / 'first'}:{machine / 'second'}:/usr/bin:/bin")
    script, words = FAULTS[fault]
    path = plant(machine / "first", script)
    with pytest.raises(UsageError) as caught:
        find_interpreter(f"=={OTHER}.*")
    assert f"{path} {words}" in str(caught.value)
    good = plant(machine / "second", f"echo {OTHER}")
    assert find_interpreter(f"=={OTHER}.*").python == good


def test_a_file_that_cannot_be_executed_is_none(machine: Path) -> None:
    Path(plant(machine / "first", f"echo {OTHER}")).chmod(0o644)
    (machine / "second" / f"python{OTHER}").mkdir(parents=True)
    with pytest.raises(UsageError):
        find_interpreter(f"=={OTHER}.*")


def test_the_error_says_what_is_needed_where_was_looked_and_what_to_do(machine: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_interpreter(f"=={OTHER}.*")
    home = machine / "home"
    for part in (
        f"=={OTHER}.*",
        "{}.{}:".format(*OWN),
        "on PATH",
        f"{home}/.pyenv/versions",
        f"{home}/.local/share/uv",
    ):
        assert part in str(caught.value)
    assert "--python" in str(caught.value) and "no use" not in str(caught.value)


def test_the_variables_of_the_user_do_not_reach_it(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module on PYTHONPATH in the place of the standard library's would answer in its stead."""
    monkeypatch.setenv("PYTHONPATH", str(machine))
    (machine / "venv.py").write_text("raise SystemExit(3)")
    path = plant(machine / "first", f'exec {sys.executable} "$@"', "{}.{}".format(*OWN))
    assert environment_module._unfit_reason(Path(path), "{}.{}".format(*OWN)) is None


@pytest.mark.parametrize(
    ("clauses", "fitting"),
    [
        (">=3.10", [(3, 10), (3, 11), (4, 0)]),
        ("<3.10", [(2, 7), (3, 9)]),
        ("==3.10.*", [(3, 10)]),
        (">=3.9, <3.11", [(3, 9), (3, 10)]),
    ],
)
def test_clauses(clauses: str, fitting: list[tuple[int, int]]) -> None:
    versions = [(2, 7), (3, 9), (3, 10), (3, 11), (4, 0)]
    assert [version for version in versions if takes_python(clauses, version)] == fitting


@pytest.mark.parametrize("clauses", ["", "3.10", "==3.10", "==3", "~=3.10", ">=3.10.2", "<3.9,banana", ">=3.10.*"])
def test_other_clauses_are_refused(clauses: str) -> None:
    with pytest.raises(ValueError, match="expected clauses"):
        takes_python(clauses, (3, 11))


def test_other_clauses_are_refused_where_requirements_are_read() -> None:
    with pytest.raises(ValueError, match=r"python: found '3\.10'"):
        Requirements(packages=("a==1",), python="3.10", verified="none")


# -- in a plan


def oneflow() -> ImplementationFile:
    return Registry().implementation("oneflow")[0]


def environment(file: ImplementationFile, python: str | None = None) -> EnvironmentPlan:
    return plan_environment(file, "cpu", file.requirements["cpu"].environment_packages(), python, "process")


def test_a_plan_says_what_makes_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, digests = [], set()
    for interpreter in (Interpreter("/a/python3.10", (3, 10)), Interpreter("/b/python3.9", (3, 9))):

        def find(versions: str, interpreter: Interpreter = interpreter) -> Interpreter:
            searched.append(versions)
            return interpreter

        monkeypatch.setattr(environment_module, "find_interpreter", find)
        plan = environment(oneflow())
        assert plan.made_with == interpreter.python and plan.python != interpreter.python
        digests.add(plan.digest)
    assert searched == ["==3.10.*"] * 2 and len(digests) == 2


def test_where_an_interpreter_lies_does_not_make_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for path in ("/a/python3.10", "/b/python3.10"):
        monkeypatch.setattr(
            environment_module, "find_interpreter", lambda _versions, path=path: Interpreter(path, (3, 10))
        )
        digests.add(environment(oneflow()).digest)
    assert len(digests) == 1


def test_a_missing_interpreter_is_told_with_its_framework(machine: Path) -> None:
    if OWN == (3, 10):
        pytest.skip("this Python is the one that is needed")
    with pytest.raises(UsageError, match=r"^oneflow.*cpu:.*==3\.10\.\*"):
        environment(oneflow())


def test_a_given_interpreter_is_not_looked_for(machine: Path) -> None:
    plan = environment(oneflow(), sys.executable)
    assert (plan.python, plan.made_with) == (sys.executable, None)


def test_an_environment_is_made_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def install(argv: list[str], _folder: Path, _say: object, _source: object = None) -> None:
        calls.append(argv)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()

    target = tmp_path / "made" / "bin" / "python"
    monkeypatch.setattr(environments, "_run_installer", install)
    monkeypatch.setattr(installer, "lacking", lambda folder, made: [])
    plan = EnvironmentPlan(
        name="made",
        folder=str(tmp_path / "made"),
        python=str(target),
        made_with="/a/python3.10",
        requirements=("a==1",),
        digest="x",
    )
    with use_environment(plan, lambda _text: None):
        created, installed = calls
        assert created[0] == "/a/python3.10"
        assert str(target) in installed and installed[-1] == "a==1"
