"""Installers: what a killed start left is ended, an unreachable index is named, and a folder of wheels needs none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from environment_plans import PIP, maker, plan
from levelfield import installer
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import RunFailed, UsageError
from levelfield.plan.image_recipe import image_plan
from levelfield.run.runtimes import environments
from levelfield.run.runtimes.environments import is_ready, use_environment
from levelfield.run.runtimes.wheels import fetch_image_wheels, fetch_wheels
from levelfield.specs.requirements import EnvironmentPackages
from starts.planted_wheels import wheel

NOBODY = "http://me:secret@127.0.0.1:9/simple"  # no server listens there

# An installer that is not done for long: its child writes into the folder, as ensurepip does below venv.
SLOW = """
for folder; do :; done
mkdir -p "$folder/lib"
(while true; do echo x > "$folder/lib/left"; sleep 0.01; done) &
sleep 600
"""


@pytest.fixture(autouse=True)
def own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", installer.WHEELS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_RETRIES", "1")


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The folder of an environment whose maker was killed, and whose installer still writes there."""
    environment, process = maker(tmp_path, SLOW)
    folder = Path(environment.folder)
    with process:
        until(lambda: (folder / "lib/left").exists())
        process.kill()
    assert len(installer._marked(folder)) >= 2
    yield folder
    installer.end_leftover_installer(folder)


def until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.02)


@pytest.mark.drill
def test_an_environment_is_made_at_once_after_its_maker_was_killed(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(argv: list[str], folder: Path, say: object, source: object = None) -> None:
        assert installer._marked(killed) == []
        (killed / "bin").mkdir(parents=True, exist_ok=True)
        (killed / "bin/python").touch()
        (killed / "lib/left").unlink(missing_ok=True)

    monkeypatch.setattr(environments, "_run_installer", install)
    monkeypatch.setattr(installer, "lacking", lambda folder, made: [])
    sentences: list[str] = []
    with use_environment(plan(tmp_path), sentences.append):
        assert is_ready(plan(tmp_path))
    time.sleep(0.1)
    assert not (killed / "lib/left").exists(), "nobody writes there any more"
    assert "fake-cpu" in sentences[0] and ": process" in sentences[0]


def test_an_installer_that_cannot_be_ended_is_named(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda process, number: None)
        patch.setattr(installer, "END_SECONDS", 0.2)
        with pytest.raises(RunFailed, match=r"fake-cpu:.*: process \d+"):
            installer.end_leftover_installer(killed)


def test_an_installer_of_another_folder_goes_on(killed: Path) -> None:
    installer.end_leftover_installer(killed.with_name("fake"))
    installer.end_leftover_installer(killed / "lib")
    assert len(installer._marked(killed)) >= 2


# -- package sources


def test_an_index_that_cannot_be_reached_is_named_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOBODY)
    with pytest.raises(RunFailed) as caught:
        installer.run([*PIP, "download", "--no-deps", "--dest", str(tmp_path), "acme==1.0"], tmp_path, print)
    message = str(caught.value)
    assert "http://127.0.0.1:9/simple (PIP_INDEX_URL)" in message
    assert "[Errno 111]" in message and "secret" not in message.partition("package index")[2]
    assert "HTTPS_PROXY" in message and "LEVELFIELD_WHEELS" in message and "wheels fetch" in message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ERROR: No matching distribution found for torch==9", "gives no torch==9 for this system and Python:"),
        ("ERROR: a (from versions: none)\nERROR: No matching distribution found for a", "does not answer, or has no"),
        ("WARNING: Retrying after connection broken by 'ConnectTimeoutError(timed out)'", "cannot be reached"),
        ("WARNING: broken by 'ProxyError('Tunnel connection failed: 403 Forbidden')'", "(Tunnel connection failed"),
        ("WARNING: SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate')", "(CERTIFICATE_VERIFY_FAILED)"),
        ("OSError: [Errno 28] No space left on device", None),
    ],
)
def test_each_cause_has_its_advice(line: str, says: str | None) -> None:
    message = installer.failure(["python", "-m", "pip", "install"], 1, line.splitlines(), {})
    assert (says in message) if says else "index" not in message


def test_the_error_stands_before_advice_that_follows_it() -> None:
    advice = ["The conflict is caused by:", "The user requested torch==2.31.0", "To fix this you could try to:", *"12"]
    conflict = "ERROR: Cannot install torch==2.31.0 because"
    message = installer.failure(["pip"], 1, [conflict, *advice, "ERROR: help"], {})
    assert message.splitlines()[1].strip() == conflict and "ERROR: help" in message


def test_what_a_build_printed_is_the_evidence_and_not_pips_own_last_lines() -> None:
    ours = ["  × Encountered error", "  note: This is an issue with the package, not pip.", "hint: See above."]
    build = [
        "  ╰─> [9 lines of output]",
        *["      noise"] * 6,
        "      RuntimeError: no CUDA here",
        "      [end of output]",
    ]
    message = installer.failure(["pip"], 1, [*build, *ours], {})
    assert message.endswith(f"\n  {build[-2].strip()}") and "×" not in message


@pytest.mark.thorough
def test_a_folder_of_wheels_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "two words"
    wheels.mkdir()
    wheel(wheels)
    monkeypatch.setenv("PIP_INDEX_URL", NOBODY)
    monkeypatch.setenv(installer.WHEELS, str(wheels))
    installer.run([*PIP, "install", "--target", str(tmp_path / "site"), "acme==1.0"], tmp_path, lambda line: None)
    assert (tmp_path / "site/acme.py").read_text().endswith(" 42\n")


def test_a_wheel_that_the_folder_lacks_is_named() -> None:
    line = "ERROR: No matching distribution found for acme==2.0"
    message = installer.failure(["pip"], 1, [line], {installer.WHEELS: "/my/wheels", "PIP_NO_INDEX": "1"})
    assert "/my/wheels (LEVELFIELD_WHEELS)" in message and "of acme==2.0" in message
    assert "fetch /my/wheels`" in message and "index" not in message


def test_a_folder_of_wheels_that_is_absent_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installer.WHEELS, str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"LEVELFIELD_WHEELS=.*absent:.*no folder"):
        installer.run(["true"], tmp_path, print)


def test_offline_makes_no_environment_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pytest.raises(RunFailed, match=r"--offline.*fake-cpu.*LEVELFIELD_WHEELS")
    with refused, use_environment(plan(tmp_path, offline=True), print):
        pytest.fail("it was made")
    wheel(tmp_path)
    made: list[str] = []

    def install(argv: list[str], folder: Path, say: object, source: object = None) -> None:
        folder.mkdir(exist_ok=True)
        made.append(argv[-1])

    monkeypatch.setattr(environments, "_run_installer", install)
    monkeypatch.setattr(installer, "lacking", lambda folder, made: [])
    monkeypatch.setattr(environments, "is_ready", lambda environment: len(made) == 2)
    monkeypatch.setenv(installer.WHEELS, str(tmp_path))
    with use_environment(plan(tmp_path, offline=True), print):
        assert made[-1] == "acme==1.0"


def test_the_wheels_of_an_image_come_from_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    implementation, place = registry.implementation("torch")
    image = image_plan(
        implementation, place, registry.vendor_file("cpu"), EnvironmentPackages(("acme==1.0",)), "mine:1"
    )
    monkeypatch.setattr("levelfield.run.runtimes.wheels.PIP_REQUIREMENT", "acme==1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", NOBODY)
    monkeypatch.setenv(installer.WHEELS, str(tmp_path))
    wheel(tmp_path)
    assert list(fetch_image_wheels(image, offline=True, say=print).files) == ["acme-1.0-py3-none-any.whl"]


@pytest.mark.thorough
def test_wheels_are_fetched_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    wheel(tmp_path / "source")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "source").as_uri())
    fetch_wheels(tmp_path / "new/wheels", sys.executable, ["acme==1.0"], lambda line: None)
    assert [path.name for path in (tmp_path / "new/wheels").glob("*.whl")] == ["acme-1.0-py3-none-any.whl"]


def test_fetch_takes_levelfield_its_tests_and_every_framework_that_this_machine_has_a_python_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[str, ...]] = []

    def fetch(folder: Path, python: str, arguments: tuple[str, ...], say: object, *rest: object) -> None:
        folder.mkdir(exist_ok=True)
        fetched.append(arguments)

    monkeypatch.setattr("levelfield.run.runtimes.wheels.fetch_wheels", fetch)
    assert main(["environment", "wheels", "fetch", str(tmp_path / "w"), "torch", "paddle"]) == 0
    locks, torch_locks, torch, paddle = fetched
    assert [Path(word).name for word in locks[1:]] == ["requirements.lock", "requirements-dev.lock"]
    assert [Path(word).name for word in torch_locks[1:]] == ["requirements-torch.lock"]
    assert locks[0] == torch_locks[0] == "--no-deps"
    assert torch[0].startswith("pip==") and torch[1].startswith("torch==")
    assert any(word.startswith("paddlepaddle==") for word in paddle)
    assert f"LEVELFIELD_WHEELS={tmp_path / 'w'}" in capsys.readouterr().out
    assert main(["environment", "wheels", "fetch", str(tmp_path / "w"), "torch", "--vendor", "ascend"]) == 2
    assert "no wheels" in capsys.readouterr().err


# -- packages that are lost


def test_a_package_that_the_platform_lost_says_how_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(*arguments: object) -> str:
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr("levelfield.cli.show_command.listing", lacks)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert main(["show"]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path} lacks" in message and "'jinja2'" in message and "requirements.lock" in message
    (tmp_path / installer.STAMP).touch()
    assert main(["show"]) == 2
    assert f"remove {tmp_path}: " in capsys.readouterr().err


def test_a_module_of_our_own_that_is_missing_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(*arguments: object) -> str:
        raise ModuleNotFoundError("No module named 'levelfield.nothing'", name="levelfield.nothing")

    monkeypatch.delenv("LEVELFIELD_DEBUG", raising=False)
    monkeypatch.setattr("levelfield.cli.show_command.listing", lacks)
    assert main(["show"]) == 5 and "'levelfield.nothing'" in capsys.readouterr().err


def test_an_installer_ends_with_its_whole_group_at_an_interrupt(tmp_path: Path) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    script = "sleep 600 & echo Collecting; wait"
    with pytest.raises(KeyboardInterrupt):
        installer.run(["sh", "-c", script], tmp_path, interrupt)
    assert installer._marked(tmp_path) == []
