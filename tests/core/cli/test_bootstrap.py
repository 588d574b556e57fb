"""run_benchmarks.py: a suitable Python runs at once, an unsuitable one makes .venv or says what is wrong.

tools/first_starts.py has the table of surroundings and outcomes.
"""

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
from levelfield import environment_folder, first_start, installer
from levelfield.errors import UsageError
from levelfield.first_start import Places, is_suitable, places_of, python_to_start
from plans import ROOT

OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/[23].[6-9].*/bin/python"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a list of packages alone."""
    (tmp_path / "requirements.lock").write_text("no-such-package==1\n")
    return tmp_path


def placed(root: Path, lock: str) -> Places:
    (root / "requirements.lock").write_text(lock)
    return places_of(root)


def installed(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def test_the_lock_file_is_read_without_comments_and_with_markers(root: Path) -> None:
    lock = (
        "# words\n\na==1.0 \\\n    --hash=sha256:00ab\nb==2 ; python_full_version >= '3.11' \\\nc_d==3.post1  # why\n"
    )
    expected = ["a==1.0", "c_d==3.post1"]
    if sys.version_info >= (3, 11):
        expected.insert(1, "b==2")
    assert list(placed(root, lock).packages) == expected


def test_markers_choose_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = "python_full_version >= '3.11'", "python_full_version < '3.11'"
    for version, expected in (
        ((3, 10, 9), (True, False, True)),
        ((3, 11, 0), (True, True, False)),
        ((3, 14, 0), (True, True, False)),
    ):
        monkeypatch.setattr(sys, "version_info", version)
        assert (first_start._holds(""), first_start._holds(new), first_start._holds(old)) == expected
        monkeypatch.undo()


def test_exactly_the_locked_packages_are_suitable(root: Path) -> None:
    assert is_suitable(placed(root, f"pytest=={installed('pytest')}\n"))
    assert not is_suitable(placed(root, "pytest==0.1\n"))
    assert not is_suitable(placed(root, "no-such-package==1\n"))


def test_packages_of_other_pythons_do_not_count(root: Path) -> None:
    other = "<" if sys.version_info >= (3, 11) else ">="
    assert is_suitable(placed(root, f"no-such-package==1 ; python_full_version {other} '3.11'\n"))


def test_an_own_environment_is_suitable_by_its_stamp(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = places_of(root)
    places.folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(places.folder))
    assert not is_suitable(places)
    (places.folder / installer.STAMP).write_text(places.digest)
    assert is_suitable(places)
    assert not is_suitable(placed(root, "no-such-package==2\n"))


class Made:
    """In place of venv and pip: what would have been run. venv leaves a python, as this machine has it."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.lost: list[str] = []

    def run(self, argv: list[str], folder: Path, say: object) -> None:
        self.calls.append(argv)
        assert environment_folder.is_own(folder), "the mark comes first"
        if "venv" in argv:
            (folder / "bin").mkdir()
            (folder / "bin/python").symlink_to(sys.executable)
            (folder / "pyvenv.cfg").write_text(f"executable = {sys.executable}\n")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    monkeypatch.setattr(installer, "run", made.run)
    monkeypatch.setattr(installer, "lacking", lambda folder, packages, with_files=False: made.lost)
    monkeypatch.setenv(first_start.STARTED, "")
    return made


def say(text: str) -> None:
    pass


def test_the_environment_is_made_once_and_again_when_the_lock_changes(root: Path, made: Made) -> None:
    first = python_to_start(root, say)
    assert "venv" in made.calls[0] and "install" in made.calls[1]
    assert "--no-deps" in made.calls[1] and str(root / "requirements.lock") in made.calls[1]
    os.environ[first_start.STARTED] = ""
    assert python_to_start(root, say) == first and len(made.calls) == 2
    assert (root / ".venv/bin/python").exists() and not (root / ".venv").readlink().is_absolute()
    os.environ[first_start.STARTED] = ""
    (root / "requirements.lock").write_text("no-such-package==2\n")
    assert python_to_start(root, say) not in (None, first) and len(made.calls) == 4


def test_packages_that_pip_has_put_elsewhere_leave_no_stamp(root: Path, made: Made) -> None:
    """What was installed is looked at, whatever pip has said: an empty environment is not ready."""
    made.lost = ["no-such-package"]
    for _ in range(2):
        with pytest.raises(UsageError, match=r"no-such-package.*`pip config"):
            python_to_start(root, say)
    assert len(made.calls) == 4 and not (root / ".venv").exists()


@pytest.mark.parametrize("missing", [installer.STAMP, "bin/python"])
def test_a_half_made_environment_is_made_again(root: Path, made: Made, missing: str) -> None:
    python_to_start(root, say)
    (places_of(root).folder / missing).unlink()
    os.environ[first_start.STARTED] = ""
    python_to_start(root, say)
    assert len(made.calls) == 4


def test_a_removed_link_has_the_environment_made_again_where_a_file_is_missing(root: Path, made: Made) -> None:
    """Users remove `.venv` to have it made again. The folder behind it is taken only where it is whole."""
    python_to_start(root, say)
    for lost, calls in ([], 2), (["no-such-package"], 4):
        (root / ".venv").unlink()
        os.environ[first_start.STARTED] = ""
        made.lost = lost
        try:
            python_to_start(root, say)
        except UsageError:
            assert lost
        assert len(made.calls) == calls


def test_an_environment_that_is_not_its_own_is_started_once_only(root: Path, made: Made) -> None:
    python_to_start(root, say)
    with pytest.raises(UsageError, match="another environment"):
        python_to_start(root, say)


@pytest.fixture
def entry() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_benchmarks_under_test", ROOT / "run_benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_python_that_cannot_be_started_is_named(entry: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.start_again("/no/such/python") == 2
    assert "/no/such/python cannot" in capfd.readouterr().err


def test_nothing_that_python_2_lacks_is_imported_before_the_sentence(entry: ModuleType) -> None:
    tree = ast.parse(Path(str(entry.__file__)).read_text(encoding="ascii"))
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [name.name for node in imports for name in node.names] == ["gc", "os", "sys"]


def test_control_characters_are_shown(entry: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    entry.say("a\x1b[2Jb")
    assert capfd.readouterr().err == "levelfield: a\\x1b[2Jb\n"


def test_the_lock_covers_what_the_project_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("]", text.index("dependencies = ["))]
    required = {name.lower().replace("_", "-") for name in re.findall(r'"([A-Za-z0-9_.-]+)>=', block)}
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert len(required) >= 5 and required <= locked


def test_everything_in_the_lock_is_exact_has_hashes_and_its_markers_are_understood() -> None:
    marker = r"python_full_version (?:<|>=) '3\.\d+'"
    package = (
        rf"[a-z0-9.-]+==[\w.]+(?: ; {marker}(?: and {marker})*)? \\\n(?:    --hash=sha256:[0-9a-f]{{64}}(?: \\)?\n)+"
    )
    header, _, packages = (ROOT / "requirements.lock").read_text().partition("annotated-types")
    assert all(line.startswith("#") for line in header.splitlines())
    assert re.fullmatch(f"(?:{package})+", f"annotated-types{packages}")


@pytest.mark.parametrize("python", OLD_PYTHONS or [None], ids=lambda p: p.parent.parent.name if p else "none")
def test_an_old_python_gets_a_sentence(python: Path | None) -> None:
    if python is None:
        pytest.skip("no Python older than 3.10 lies in ~/.pyenv/versions")
    done = subprocess.run([str(python), str(ROOT / "run_benchmarks.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(r"Python [23]\.", line) and "3.10 or" in line


def test_old_pythons_can_parse_the_entry() -> None:
    ast.parse((ROOT / "run_benchmarks.py").read_text(), feature_version=(3, 7))


def test_where_nothing_can_be_written_no_making_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user in root's checkout, whose Python lies in root's home."""

    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    lines: list[str] = []
    monkeypatch.setattr(environment_folder, "make_empty", refused)
    with pytest.raises(UsageError, match=r"levelfield-.*: Permission denied"):
        python_to_start(root, lines.append)
    assert lines == []
