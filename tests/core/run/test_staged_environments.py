"""Packages that are built against others are installed after them, in environments, folders of wheels and nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environment_plans import plan, use
from levelfield import installer
from levelfield.errors import RunFailed
from levelfield.node import node_setup
from levelfield.run.runtimes.wheels import fetch_wheels
from levelfield.specs.requirements import BuildStep
from starts.planted_wheels import built_against, wheel, write

STEP = BuildStep(packages=("engine==1.0",), home={"ENGINE_HOME": "acme"}, headers="acme*")
READ = "import engine, json; print(json.dumps([engine.AGAINST, engine.SEEN]))"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel and a source distribution that is built against it; pip takes nothing else."""
    folder = tmp_path / "source"
    folder.mkdir()
    wheel(folder)
    built_against(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    monkeypatch.delenv("CPATH", raising=False)
    return folder


@pytest.mark.parametrize("kind", [pytest.param("cpu", marks=pytest.mark.thorough), "nvidia"])
def test_a_build_for_processors_is_refused_where_an_accelerator_needs_another(
    kind: str, tmp_path: Path, source: Path
) -> None:
    write(source, "engine", "", version="1.0+cpu")
    environment = plan(tmp_path, "engine==1.0", name=f"acme-{kind}")
    if kind == "cpu":
        assert use(environment)
        return
    with pytest.raises(RunFailed, match=r"engine 1.0\+cpu,"):
        use(environment.model_copy(update={"builds": (BuildStep(packages=("absent==1.0",)),)}))


def test_what_is_built_against_the_first_packages_comes_after_them(tmp_path: Path, source: Path) -> None:
    environment = plan(tmp_path, "acme==1.0", name="acme-nvidia", builds=(STEP,))
    sentences = use(environment)
    assert any(text.startswith("building engine==1.0 ") for text in sentences)
    against, seen = json.loads(subprocess.check_output([environment.python, "-c", READ]))
    packages = next(Path(environment.folder).glob("lib/python3*/site-packages"))
    assert against == 42 and seen["ENGINE_HOME"] == str(packages / "acme")
    assert seen["CPATH"].split(":") == sorted(str(path) for path in packages.glob("acme*"))
    assert seen["PATH"].split(":")[0] == str(Path(environment.folder) / "bin")
    stamp = json.loads((Path(environment.folder) / "levelfield-environment.json").read_text())
    assert stamp["requirements"] == ["acme==1.0", "engine==1.0"]


@pytest.mark.thorough
def test_in_one_stage_it_cannot_be_built(tmp_path: Path, source: Path) -> None:
    """What the two stages are for: pip's isolated build has none of the environment's packages."""
    with pytest.raises(RunFailed, match=r"acme"):
        use(plan(tmp_path, "acme==1.0", "engine==1.0", name="acme-nvidia"))


@pytest.mark.thorough
def test_its_wheel_is_built_where_wheels_are_fetched(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "wheels"
    fetch_wheels(folder, sys.executable, ["acme==1.0"], lambda text: None, (STEP,))
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == [
        "acme-1.0-py3-none-any.whl",
        "engine-1.0-py3-none-any.whl",
    ]


@pytest.mark.thorough  # the next test has its variables; of the stages, this machine's are tested above
def test_a_node_installs_in_the_same_stages(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = node_setup._run_installer

    def run_tests_pip(argv: list[str], variables: dict[str, str]) -> None:
        """The tests' own pip in place of a new environment's, which takes seconds to make."""
        if "venv" in argv:
            return run([*argv, "--without-pip"], variables)
        return run([sys.executable, "-m", "pip", "--python", argv[0], *argv[3:]], variables)

    monkeypatch.setattr(node_setup, "_run_installer", run_tests_pip)
    environment = {"digest": "sha256:0", "requirements": ["acme==1.0"], "builds": [STEP.model_dump(mode="json")]}
    node_setup._make_environment(tmp_path / "made", environment, {})
    against, seen = json.loads(subprocess.check_output([str(tmp_path / "made/bin/python"), "-c", READ]))
    assert against == 42 and seen["PATH"].startswith(str(tmp_path / "made/bin"))
    assert json.loads((tmp_path / "made" / node_setup.STAMP).read_text())["requirements"] == [
        "acme==1.0",
        "engine==1.0",
    ]


def test_a_node_and_this_machine_build_with_the_same_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib/python3.11/site-packages/acme/include").mkdir(parents=True)
    step = {"home": {"ENGINE_HOME": "acme"}, "headers": "acme/include"}
    for before in (None, "/usr/own"):
        monkeypatch.setenv("CPATH", before) if before else monkeypatch.delenv("CPATH", raising=False)
        ours = installer.build_variables(tmp_path, {"ENGINE_HOME": "acme"}, "acme/include")
        assert ours == node_setup._build_variables(tmp_path, step)
        assert ours["CPATH"].endswith("/acme/include:/usr/own" if before else "/acme/include")


def test_a_named_index_stands_beside_pips_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_WHEELS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("LEVELFIELD_ACME_INDEX", raising=False)
    assert installer.source_variables(None) == installer.source_variables("LEVELFIELD_ACME_INDEX") == {}
    monkeypatch.setenv("LEVELFIELD_ACME_INDEX", "file:///acme")
    assert installer.source_variables("LEVELFIELD_ACME_INDEX") == {"PIP_EXTRA_INDEX_URL": "file:///acme"}
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///own")
    assert installer.source_variables("LEVELFIELD_ACME_INDEX") == {"PIP_EXTRA_INDEX_URL": "file:///own file:///acme"}
    monkeypatch.setenv("LEVELFIELD_WHEELS", str(tmp_path))
    assert "PIP_NO_INDEX" in installer.source_variables("LEVELFIELD_ACME_INDEX")


@pytest.mark.thorough
def test_pip_installs_from_the_named_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index" / "acme").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    wheel(tmp_path / "index" / "acme")
    (tmp_path / "index/acme/index.html").write_text('<a href="acme-1.0-py3-none-any.whl">acme</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("LEVELFIELD_ACME_INDEX", (tmp_path / "index").as_uri())
    environment = plan(tmp_path, name="acme-nvidia", index="LEVELFIELD_ACME_INDEX")
    use(environment)
    printed = subprocess.check_output([environment.python, "-c", "import acme; print(acme.VALUE)"])
    assert printed == b"42\n"
