"""The example of docs/writing-a-vendor.md, as a package that pip installs and the platform finds by its entry point."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.testing.check_suite import CHECKS, run_checks
from levelfield.testing.scaffold import create_package, create_plugin_folder
from levelfield.testing.subject import VendorSubject

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests/packages/levelfield-acme"
PIP = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")


def installed(package: Path, folder: Path) -> Path:
    """Where a copy of the package is installed: building writes beside the sources."""
    copy = shutil.copytree(package, folder / "source")
    subprocess.run([sys.executable, *PIP, "--target", str(folder / "site"), str(copy)], check=True, timeout=120)
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(PACKAGE, tmp_path_factory.mktemp("acme"))


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(site), str(ROOT / "platform")])
    # CI: the example lacks images and tuning, so its own tests skip two checks
    environment = {**os.environ, "PYTHONPATH": paths, "LEVELFIELD_NO_BOOTSTRAP": "1", "CI": ""}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=site, capture_output=True, text=True, timeout=120
    )


def test_an_installed_vendor_is_listed_and_passes(site: Path) -> None:
    """Without the checks that train: the package's own tests have all of them."""
    listing = run(site, str(ROOT / "run_benchmarks.py"), "show", "vendors")
    assert listing.returncode == 0 and "acme" in listing.stdout, listing.stderr
    checked = run(site, str(ROOT / "run_benchmarks.py"), "vendor", "check", "acme", "--fast")
    assert checked.returncode == 0 and re.search(r"^acme:.*\bpassed\b", checked.stdout, re.MULTILINE), checked.stdout


def test_without_the_package_there_is_no_such_vendor(tmp_path: Path) -> None:
    absent = run(tmp_path, str(ROOT / "run_benchmarks.py"), "vendor", "check", "acme")
    assert absent.returncode == 2 and "'acme'" in absent.stderr


# Those that train and plan most: test_vendor_command.py makes them for the same vendor.
LONG = [item.name for item in CHECKS if item.slow or item.name == "cases"]


@pytest.mark.parametrize("left_out", [LONG, pytest.param([], marks=pytest.mark.thorough)], ids=["most", "all"])
def test_the_package_s_own_tests_pass(site: Path, left_out: list[str]) -> None:
    chosen = " and ".join(f"not {name}" for name in left_out)
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(PACKAGE / "tests"))
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)", done.stdout)}
    assert done.returncode == 0 and counts == {"passed": len(CHECKS) - len(left_out) - 2, "skipped": 2}, done.stdout


def test_the_example_is_what_vendor_new_writes_but_for_the_vendor(tmp_path: Path) -> None:
    """So that the example does not fall behind: its frame is the scaffold's."""
    for path in create_package("vendor", "acme", tmp_path, Registry()).rglob("*"):
        if path.is_file() and "vendors" not in path.parts:
            ours = (PACKAGE / path.relative_to(tmp_path / PACKAGE.name)).read_text()
            assert _without_description(ours) == _without_description(path.read_text())


def _without_description(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("description")]


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs/writing-a-vendor.md").read_text()
    folder = PACKAGE / "levelfield_acme/vendors/acme"
    for name in ("vendor.yaml", "recorded/monitor.csv"):
        assert (folder / name).read_text() in page, name


def test_the_page_shows_what_a_new_folder_s_check_says(tmp_path: Path) -> None:
    create_plugin_folder("vendor", "acme", tmp_path, Registry())
    finding = next(run_checks(VendorSubject("acme", [tmp_path])))
    page = " ".join((ROOT / "docs/writing-a-vendor.md").read_text().split())
    assert finding.status == "missing" and finding.says in page and finding.do in page
