"""Every pin for NVIDIA devices is on the package index for its Python: by pip without an installation.

pip reads the index that it is configured to use, without local folders of wheels, whose builds may be others.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.specs.requirements import EnvironmentPackages, takes_python

# An index without the wheels' metadata sends whole wheels: more than a gigabyte.
pytestmark = pytest.mark.thorough

KIND = "nvidia"
SOURCES_ONLY = ("flash-attn", "deepspeed")  # pip would build their metadata: only their versions are listed
PATIENCE_SECONDS = 120
NO_INDEX = "no package index answers"


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = ("PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    query = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    mirror = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    settings = {"PIP_CONFIG_FILE": os.devnull, **({"PIP_INDEX_URL": mirror} if mirror else {})}
    argv = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-cache-dir", "--retries", "0"]
    try:
        return subprocess.run(
            argv, env={**variables, **settings}, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{NO_INDEX} within {PATIENCE_SECONDS} s")


@cache
def versions_of(name: str) -> tuple[str, ...]:
    """The versions of a package on the index."""
    match = re.search(r"Available versions: (.+)", pip("index", "versions", name).stdout)
    return tuple(match[1].split(", ")) if match else ()


@pytest.fixture(scope="module", autouse=True)
def index() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the pins for NVIDIA devices are looked up for Linux on x86-64")
    if not versions_of("packaging"):
        pytest.skip(NO_INDEX)


def environments() -> Iterator[tuple[str, EnvironmentPackages, str]]:
    """Every framework's packages with all that a run can want, and the Python for them."""
    registry = Registry()
    for label in registry.framework_labels():
        file, _folder = registry.implementation_of_label(label)
        if needs := file.requirements.get(KIND):
            python = next(f"3.{minor}" for minor in (11, 10) if takes_python(needs.python, (3, minor)))
            yield label, needs.environment_packages(("fp8", "flash_attn")), python


def resolved(packages: list[str], python: str, folder: Path, *options: str) -> dict[str, Any]:
    """pip's report by package, as it would install them. An unknown pin fails the test with pip's own words."""
    report = folder / "report.json"
    target = ("--python-version", python, "--only-binary=:all:", "--target", str(folder / "nothing"))
    chosen = ("--dry-run", "--quiet", "--ignore-installed", "--report", str(report), *target, *options)
    done = pip("install", *chosen, *packages)
    assert done.returncode == 0, f"{packages}: {done.stderr[-600:]}"
    assert not (folder / "nothing").exists()
    metadata = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    return {package["name"].lower().replace("_", "-"): package for package in metadata}


def name_of(package: str) -> str:
    return re.split(r"[\[=;]", package)[0].lower().replace("_", "-")


def fitting(packages: tuple[str, ...], python: str) -> list[str]:
    """Those whose marker fits the Python: pip would judge markers by the one that it runs in."""
    return [p for p in packages if f"python_version {'<' if python != '3.10' else '>='}" not in p]


def batches() -> Iterator[tuple[str, list[str]]]:
    """All pins that have wheels, each once, with the Python; each batch has a package in one version only."""
    left: dict[tuple[str, str], None] = {}
    for _label, packages, python in environments():
        elsewhere = packages.index.packages if packages.index else ()
        fitting_packages = fitting(
            (*packages.pip_packages, *(p for step in packages.build_steps for p in step.packages)), python
        )
        left |= dict.fromkeys(
            (python, p.partition(";")[0]) for p in fitting_packages if name_of(p) not in (*SOURCES_ONLY, *elsewhere)
        )
    while left:
        python = next(iter(left))[0]
        batch = {name_of(p): p for version, p in left if version == python}
        yield python, list(batch.values())
        left = {key: None for key in left if key[0] != python or key[1] not in batch.values()}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any] | None]:
    """What the index says of every pin that has wheels, by Python and pin; None where it has no such wheel.

    It is looked up once: an index without metadata of its own gives pip the whole wheels, a gigabyte for each torch.
    """
    metadata: dict[tuple[str, str], dict[str, Any] | None] = {}
    for python, packages in batches():
        batch = resolved(packages, python, tmp_path_factory.mktemp("batch"), "--no-deps")
        metadata |= {(python, package): batch.get(name_of(package)) for package in packages}
    return metadata


def test_every_pin_with_wheels_is_on_the_index(wheels: dict[tuple[str, str], dict[str, Any] | None]) -> None:
    assert len(wheels) > 25 and [pin for pin, metadata in wheels.items() if metadata is None] == []


def test_every_other_pin_is_listed_or_has_a_named_index() -> None:
    for label, packages, python in environments():
        elsewhere = packages.index.packages if packages.index else ()
        for package in fitting(
            (*packages.pip_packages, *(p for step in packages.build_steps for p in step.packages)), python
        ):
            name, _, version = package.partition(";")[0].strip().partition("==")
            if name_of(name) in SOURCES_ONLY:
                assert version in versions_of(name_of(name)), f"{label}: {package}"
            if name_of(name) in elsewhere:
                assert version not in versions_of(name_of(name)), f"{label}: {package} needs no named index any more"
            if name_of(name) == "transformer-engine":  # its extra `pytorch` is a package of sources
                assert version in versions_of("transformer-engine-torch"), f"{label}: {package}"


def test_a_pin_that_is_not_there_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="packaging==99999"):
        resolved(["packaging==99999"], "3.11", tmp_path, "--no-deps")
    assert "99999" not in versions_of("packaging")


def cuda_of(torch: dict[str, Any]) -> int:
    """The CUDA that a build of torch is for, by the libraries that it requires."""
    required = " ".join(torch["requires_dist"])
    match = re.search(r"cuda-toolkit\[[^]]*\]==(\d+)|nvidia-cuda-runtime-cu\d+==(\d+)", required)
    assert match, required
    return int(match[1] or match[2])


def test_a_driver_is_asked_for_by_the_cuda_of_the_build(
    wheels: dict[tuple[str, str], dict[str, Any] | None],
) -> None:
    """NVIDIA's table of drivers: CUDA 12 runs with 525.60.13 and newer, CUDA 13 with 580.65.06 and newer."""
    least = {12: "525.60.13", 13: "580.65.06"}
    builds: dict[str, int] = {}
    for label, packages, python in environments():
        for package in packages.pip_packages:
            if name_of(package) == "torch":
                metadata = wheels[python, package]
                assert metadata is not None
                builds[package] = cuda_of(metadata)
                assert packages.driver is not None and packages.driver.least == least[builds[package]], label
                assert f"CUDA {builds[package]}" in packages.driver.reason
                engines = [p for step in packages.build_steps for p in step.packages if "transformer" in p]
                assert all(f"core-cu{builds[package]}," in p for p in engines), label
    assert sorted(set(builds.values())) == [12, 13]


@pytest.mark.thorough
@pytest.mark.parametrize("label", ["megatron", "torch_2.10.0", "jax"])
def test_all_that_pip_installs_before_the_builds_resolves_together(label: str, tmp_path: Path) -> None:
    packages, python = next((packages, python) for name, packages, python in environments() if name == label)
    wheels = [p.partition(";")[0] for p in fitting(packages.pip_packages, python)]
    assert len(resolved(wheels, python, tmp_path)) > len(wheels)
