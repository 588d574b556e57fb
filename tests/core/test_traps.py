"""Traps that were each walked into once: names that shadow, imports that go the wrong way."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import tomllib
from levelfield.catalog.registry import Registry
from levelfield.node.code_digest import shared_folders
from plans import PLUGINS, ROOT

STANDARD = sys.stdlib_module_names
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FRAMEWORKS = set(Registry().frameworks)  # each one's package has its name
# What the platform needs, and a machine that only trains does not have; both have numpy.
NEEDS = {re.split(r"[^A-Za-z0-9_.-]", need)[0].lower() for need in PROJECT["dependencies"]} - {"numpy"}
PLATFORM = {module for module, owners in packages_distributions().items() if {o.lower() for o in owners} & NEEDS}
# What an adapter may use to reach its maker's devices.
OF_VENDOR = {"cpu": {"psutil"}, "nvidia": {"pynvml"}, "fake": set()}


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The dotted names that a file imports, at any depth of nesting; relative ones with their dots."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + (node.module or ""))
    return tuple(names)


def sources(kind: str) -> list[Path]:
    return sorted(p for root in (ROOT, PLUGINS) for p in (root / kind).rglob("*.py"))


def test_platform_is_the_standard_librarys(tmp_path: Path) -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert [p.name for p in (ROOT / "platform").glob("*.py")] == []
    script = "import platform, uuid; print(platform.system(), platform.__file__)"
    for folders in ((ROOT,), (ROOT / "platform",), (ROOT, ROOT / "platform")):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        argv = [sys.executable, "-c", script]
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        system, file = done.stdout.split()
        assert system == os.uname().sysname and not Path(file).is_relative_to(ROOT)


def test_git_tracks_no_environment() -> None:
    """Where a commit has a link of this name, git removes the ignored folder that is there when it checks it out."""
    argv = ["git", "ls-files", ".venv", ".venvs"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True).stdout == ""
    assert {".venv", ".venvs"} <= set((ROOT / ".gitignore").read_text().splitlines()), "a link too, not a folder alone"


def test_nothing_under_models_shadows_a_framework() -> None:
    paths = list((ROOT / "models").rglob("*"))
    assert [p for p in paths if p.name == "__init__.py"] == []
    assert [p for p in paths if p.suffix == ".py" and p.stem in FRAMEWORKS | {"numpy", "levelfield"}] == []
    assert [
        p for p in (ROOT / "models").rglob("*/") if p.parent.parent == ROOT / "models" and p.name in FRAMEWORKS
    ] == []


@pytest.mark.parametrize("kind", ["models", "vendors"])
def test_no_plugin_file_is_named_like_the_standard_library(kind: str) -> None:
    assert [p for p in sources(kind) if p.stem in STANDARD] == []


def home_of(path: Path) -> Path:
    """The folder of an implementation that a file of it lies in."""
    return next(folder for folder in path.parents if folder.parent.name == "models")


@cache
def folders_on_path(home: Path) -> list[Path]:
    return [home, *shared_folders(home)]


@cache
def siblings_of(home: Path) -> set[str]:
    """The modules and packages that a training of this folder may import by their names."""
    folders = folders_on_path(home)
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {path.stem if path.parent in folders else path.parent.name for path in files}


def test_models_import_the_worker_their_framework_and_siblings() -> None:
    for path in sources("models"):
        home = home_of(path)
        siblings = siblings_of(home)
        others = FRAMEWORKS - {folder.name for folder in folders_on_path(home)}
        for name in imported(path):
            of_worker, first = f"{name}.".startswith("levelfield.worker."), name.partition(".")[0]
            ours = first == "levelfield" or (first in PLATFORM and first not in siblings)
            assert of_worker or not (ours or first in others), (path, name)


def test_vendors_import_contracts_and_specs() -> None:
    for path in sources("vendors"):
        allowed = STANDARD | OF_VENDOR[path.parent.name]
        for name in imported(path):
            ours = name.startswith(("levelfield.contracts.", "levelfield.specs."))
            assert ours or name.partition(".")[0] in allowed, (path, name)


def test_the_platform_never_imports_a_framework() -> None:
    paths = sources("platform")
    assert len(paths) > 300
    for path in paths:
        names = {name.partition(".")[0] for name in imported(path)}
        assert names & (FRAMEWORKS | {"transformers", "pandas"}) == set(), path


def modules_in(*folders: str) -> set[str]:
    """The names by which programs of these folders import files and folders of theirs."""
    paths = [path for name in folders for path in (ROOT / name).iterdir()]
    return {path.stem for path in paths if path.suffix == ".py" or (path.is_dir() and list(path.glob("*.py")))}


def test_the_product_imports_nothing_of_tools_or_tests_and_tools_nothing_of_tests() -> None:
    tools, tests = modules_in("tools"), modules_in("tests", "tests/core", "tests/models", "tests/gpu")
    assert {"matrix", "rehearsal", "standin"} <= tools and {"driving", "plans"} <= tests
    for folder, forbidden in {"platform": tools | tests, "vendors": tools | tests, "tools": tests}.items():
        for path in (ROOT / folder).rglob("*.py"):
            assert not forbidden & {name.partition(".")[0] for name in imported(path)}, path


def test_the_worker_imports_numpy_and_the_standard_library_only() -> None:
    for path in (ROOT / "platform/levelfield/worker").rglob("*.py"):
        names = {name.partition(".")[0] for name in imported(path) if not name.startswith(".")}
        assert names <= STANDARD | {"numpy"}, path


def test_a_missing_docker_sdk_is_not_found_in_the_repositorys_folder() -> None:
    """`import docker` in the root would find docker/ as an empty namespace: the root is never on sys.path."""
    script = f"import sys; sys.argv = ['x', '--version']; sys.path[0] = {str(ROOT)!r}; import run_benchmarks\n"
    script += "run_benchmarks.main()\nprint(sys.path[0])"
    environment = {**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1", "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == str(ROOT / "platform")


# Modules that open files of the checkout, of this machine's kernel, or of the environment that they make. All others
# may meet what somebody else put there, and open it by node/regular_files.py: a pipe would hold them for ever.
OWN_FILES = {
    "catalog/code_basis.py", "environment_folder.py", "first_start.py", "installer.py", "run/builds.py",
    "run/launchers/node_content.py", "run/launchers/kubernetes/kubernetes_launcher.py",
    "run/launchers/container_launcher.py", "run/launchers/launched_ranks.py", "run/launchers/ssh/ssh_setup.py",
    "run/provenance.py", "pages/page_rendering.py",
    "pages/page_building.py", "store/address.py", "store/backup.py",
}  # fmt: skip
READS = re.compile(r"\.read_text\(|\.read_bytes\(|\bopen\(\"r|\.open\(\)")


def test_files_of_others_are_opened_only_where_they_are_regular_ones() -> None:
    folder = ROOT / "platform" / "levelfield"
    rooms = {"node", "worker", "testing"}  # the first two read what their own run wrote; the third an author's folder
    readers = {path.relative_to(folder) for path in folder.rglob("*.py") if READS.search(path.read_text())}
    assert {str(path) for path in readers if path.parts[0] not in rooms} - OWN_FILES == set()


def test_plugins_are_known_to_these_rules() -> None:
    assert {home_of(p).name for p in sources("models")} == FRAMEWORKS | {"fake"}
    assert {"pydantic", "yaml", "psutil"} <= PLATFORM and "numpy" not in PLATFORM
    assert {p.parent.name for p in sources("vendors")} == set(OF_VENDOR)


def test_no_two_test_files_share_a_name() -> None:
    """Outside packages pytest imports the second of one name as the first, and refuses."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if "packages" not in path.parts]
    assert sorted(names) == sorted(set(names))


def test_the_trainers_of_a_benchmark_find_the_modules_of_this_project() -> None:
    """They import them where they need them, in another Python: nothing else sees a folder that has moved."""
    path = ROOT / "benchmarks" / "loops" / "torch_trainers.py"
    tree = ast.parse(path.read_text())
    folders = next(
        node.value.generators[0].iter.elts  # type: ignore[attr-defined]
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FOLDERS"
    )
    visible = [ROOT / ast.literal_eval(folder) for folder in folders]
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    modules = {path.stem for folder in ("tools", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    ours = {name for name in imported if name in modules}
    assert "huggingface_classes" in ours
    assert [name for name in ours if not any((folder / f"{name}.py").is_file() for folder in visible)] == []
