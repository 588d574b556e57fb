"""The stages of requirements as a manifest writes them, and what a manifest must not say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from levelfield.errors import DocumentError
from levelfield.specs.base import parse
from levelfield.specs.requirements import Requirements, require_pin, version_numbers

BUILD = {
    "name": "engine",
    "packages": ["engine==1.0"],
    "wanted": "fp8",
    "beside": ["ninja==1.13.0"],
    "home": {"CUDA_HOME": "nvidia/cu13"},
    "headers": "nvidia/*/include",
    "tools": [{"program": "g++", "source": "install it"}],
    "without": "no fp8",
}
RIGHT: dict[str, Any] = {
    "packages": ["torch==2.13.0"],
    "driver": {"least": "580.65.06", "reason": "a build for CUDA 13"},
    "index": {"setting": "LEVELFIELD_ACME_INDEX", "packages": ["torch"], "reason": "its own"},
    "builds": [BUILD, {**BUILD, "name": "kernels", "packages": ["kernels==2"], "wanted": "always", "beside": []}],
    "verified": "none",
}


def test_a_run_has_the_builds_that_it_needs_and_what_they_need_beside() -> None:
    needs = parse(Requirements, RIGHT, "here")
    plain, fp8 = needs.environment_packages(), needs.environment_packages(["fp8"])
    assert plain.pip_packages == ("torch==2.13.0",) and [build.name for build in plain.builds] == ["kernels"]
    assert [build.name for build in plain.left_out] == ["engine"] and fp8.left_out == ()
    assert fp8.pip_packages == ("torch==2.13.0", "ninja==1.13.0")
    assert [step.packages for step in fp8.build_steps] == [("engine==1.0",), ("kernels==2",)]
    assert fp8.driver == needs.driver and fp8.index == needs.index


def test_requirements_without_builds_have_the_digest_that_they_had() -> None:
    plain = {"packages": ["torch==2.13.0"], "verified": "none"}
    with_none = parse(Requirements, {**plain, "builds": [], "driver": None, "index": None}, "here")
    assert with_none.fingerprint() == parse(Requirements, plain, "here").fingerprint()
    assert with_none.fingerprint() != parse(Requirements, RIGHT, "here").fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"builds": [{**BUILD, "packages": ["engine>=1"]}]}, "builds.engine.packages: found engine>=1"),
        ({"builds": [{**BUILD, "beside": ["ninja"]}]}, "builds.engine.beside: found ninja"),
        ({"builds": [{**BUILD, "packages": ["--index-url=x"]}]}, "expected a name and a version in one line"),
        ({"builds": [{**BUILD, "wanted": "often"}]}, "wanted"),
        ({"builds": [{**BUILD, "home": 1}]}, "home"),
        ({"builds": [{**BUILD, "headers": "../elsewhere"}]}, "headers"),
        ({"builds": [{**BUILD, "headers": "/usr/include"}]}, "headers"),
        ({"builds": [{**BUILD, "tools": [{"program": "g++; rm", "source": "x yz"}]}]}, "program"),
        ({"builds": [{**BUILD, "tools": [{"program": "nvcc", "release": "new", "source": "x yz"}]}]}, "release"),
        ({"driver": {"least": "new", "reason": "because"}}, "least"),
        ({"driver": {"least": "580"}}, "reason"),
        ({"index": {"setting": "PIP_INDEX_URL", "packages": ["torch"], "reason": "because"}}, "setting"),
        ({"index": {**RIGHT["index"], "packages": ["paddle"]}}, "found paddle, which packages does not have"),
    ],
)
def test_each_fault_of_a_manifest_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=r"here") as refusal:
        parse(Requirements, {**RIGHT, **change}, "here")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("version", "package", "is_pinned"),
    [
        ("0.19.8+cuda12", "deepspeed==0.19.8", True),
        ("0.19.8+cuda12", "deepspeed==0.19.9", False),
        ("0.19.8+cuda12", "deepspeed==0.19.81", False),
        ("2.13.0+cpu", "torch==2.13.0", False),  # another build of the same version would be installed
        ("2.13.0+cpu", "torch==2.13.0+cpu", True),
        ("2.13.0", "torch==2.13.0+cpu", True),
    ],
)
def test_a_version_beside_other_packages_is_pinned_to_its_own(version: str, package: str, is_pinned: bool) -> None:
    if is_pinned:
        return require_pin((package,), version, "here")
    with pytest.raises(ValueError, match=re.escape(version)):
        require_pin((package,), version, "here")


def test_versions_of_drivers_are_numbers_or_unknown() -> None:
    assert version_numbers("580.65.06") == (580, 65, 6) and version_numbers("99") == (99,)
    assert [version_numbers(text) for text in ("", "580.", "unreadable: 5", "580.x", "-1")] == [None] * 5
