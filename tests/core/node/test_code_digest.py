"""What the digest of a framework's folder covers: everything that a training could load or read from it."""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path

import pytest
from levelfield.node.code_digest import code_digest, folder_digest, shared_folders, source_files

MODES = py_compile.PycInvalidationMode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a framework, with a cache of its source as Python writes it."""
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "implementation.yaml").write_text("framework: own\n")
    (folder / "train.py").write_text("x = 1\n")
    py_compile.compile(str(folder / "train.py"))
    return folder


@pytest.mark.parametrize(
    "name",
    ["fast.so", "table.txt", "pyproject.toml", "weights.pt", "data/deep.bin", "old.pyc", ".hidden", "tested.json/x"],
)
def test_every_file_of_the_folder_counts(folder: Path, name: str) -> None:
    before = folder_digest(folder)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    for content in (b"1", b"2"):
        path.write_bytes(content)
        assert folder_digest(folder) != before
        before = folder_digest(folder)


@pytest.mark.parametrize("mode", [MODES.TIMESTAMP, MODES.CHECKED_HASH])
def test_a_cache_that_python_compares_with_its_source_does_not_count(folder: Path, mode: MODES) -> None:
    before = folder_digest(folder)
    py_compile.compile(str(folder / "train.py"), invalidation_mode=mode, optimize=1)
    (folder / "__pycache__" / "train.cpython-311.pyc.139872").write_bytes(b"half")  # Python writes so, and renames
    assert len(list((folder / "__pycache__").iterdir())) >= 3 and folder_digest(folder) == before


def test_a_cache_that_is_loaded_in_place_of_its_source_counts(folder: Path) -> None:
    """With an unchecked hash Python runs the cache, whatever the source says."""
    before, source = folder_digest(folder), folder / "train.py"
    cache = Path(importlib.util.cache_from_source(str(source)))
    source.write_text("x = 2\n")
    py_compile.compile(str(source), invalidation_mode=MODES.UNCHECKED_HASH)
    source.write_text("x = 1\n")
    spec = importlib.util.spec_from_file_location("train", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.x == 2, "the source says 1"
    assert cache in source_files(folder) and folder_digest(folder) != before


def test_a_cache_without_its_source_counts(folder: Path) -> None:
    before = folder_digest(folder)
    (folder / "train.py").rename(folder / "other.py")
    assert folder_digest(folder) != before
    assert folder / "__pycache__" / Path(importlib.util.cache_from_source("train.py")).name in source_files(folder)


def test_what_was_measured_is_no_source_beside_a_manifest_alone(folder: Path) -> None:
    before = folder_digest(folder)
    (folder / "tested.json").write_text("{}")
    (folder / "tested-2.0.json").write_text("{}")
    assert folder_digest(folder) == before
    (folder / "data").mkdir()
    (folder / "data" / "tested.json").write_text("{}")
    assert folder_digest(folder) != before


def test_links_are_followed_and_a_circle_of_them_ends(folder: Path, tmp_path: Path) -> None:
    before = folder_digest(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "hidden.py").write_text("1")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again").symlink_to(elsewhere)
    (folder / "circle").symlink_to(folder)
    linked = folder_digest(folder)
    assert linked != before and [path.name for path in source_files(folder)].count("hidden.py") == 2
    (elsewhere / "hidden.py").write_text("2")
    assert folder_digest(folder) != linked


@pytest.mark.parametrize(
    "line",
    [
        'sys.path.append(str(Path(__file__).parents[1] / "beside"))',
        "sys.path.append(str(Path(__file__).parent.parent / 'beside'))",
        'sys.path.append(os.path.join(os.path.dirname(__file__), "..", "beside"))',
        'sys.path.append(f"{here}/../beside")',
        'sys.path.append("../beside/inner")',
    ],
)
def test_a_folder_beside_counts_that_the_sources_name(folder: Path, line: str) -> None:
    """With the folders that it names itself."""
    for name in ("beside", "further", "unrelated"):
        (folder.parent / name).mkdir()
    (folder.parent / "beside" / "inner.py").write_text('root = Path(__file__).parents[1] / "further"\n')
    assert shared_folders(folder) == []
    (folder / "train.py").write_text(line)
    assert [path.name for path in shared_folders(folder)] == ["beside", "further"]
    before = code_digest(folder)
    (folder.parent / "further" / "fast.so").write_bytes(b"1")
    assert code_digest(folder) != before
