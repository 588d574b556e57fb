"""Recipes of images: each vendor's and framework's Dockerfile is a file here, linted, and every input changes the tag.

`UPDATE_GOLDEN=1 pytest tests/containers/test_recipes.py` writes the files anew; read the difference before committing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.errors import RunFailed, UsageError
from levelfield.plan import image_recipe
from levelfield.plan.image_recipe import image_plan
from levelfield.run.runtimes.images import image_tag
from levelfield.run.runtimes.wheels import Wheels, fetch_image_wheels, verify_wheels
from levelfield.specs.plan import ImagePlan
from levelfield.specs.requirements import EnvironmentPackages
from levelfield.specs.vendor import Image

GOLDEN = Path(__file__).parent / "golden"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


def recipe(vendor: str, framework: str, given: str | None = None) -> ImagePlan:
    registry = Registry()
    implementation, folder = registry.implementation(framework)
    file = registry.vendor_file(vendor)
    needs = implementation.requirements.get(file.device_kind)
    return image_plan(
        implementation, folder, file, needs.environment_packages() if needs else EnvironmentPackages(), given
    )


def offered() -> list[tuple[str, str]]:
    """Every vendor with every framework that it has an image for."""
    registry = Registry()
    files = [registry.vendor_file(name) for name in sorted(registry.vendors)]
    return [
        (f.name, framework)
        for f in files
        for framework in sorted(registry.frameworks_reaching(f))
        if {framework, "base"} & set(f.images)
    ]


def refused(image: ImagePlan) -> str:
    """What hadolint says against it; empty when it has nothing to say."""
    assert HADOLINT is not None, "hadolint is in requirements-dev.lock"
    done = subprocess.run([HADOLINT, "-"], input=image.dockerfile, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("vendor", "framework"), offered())
def test_the_dockerfile_is_the_one_that_was_read_and_hadolint_has_nothing_against_it(
    vendor: str, framework: str
) -> None:
    image = recipe(vendor, framework)
    golden = GOLDEN / f"{vendor}-{framework}.Dockerfile"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(image.dockerfile)
    assert image.dockerfile == golden.read_text()
    assert refused(image) == ""


def test_no_golden_file_is_left_over() -> None:
    assert {p.name for p in GOLDEN.iterdir()} == {f"{v}-{f}.Dockerfile" for v, f in offered()}


def test_hadolint_refuses_what_it_should() -> None:
    image = recipe("cpu", "torch")
    broken = image.model_copy(update={"dockerfile": image.dockerfile + "RUN cd /tmp\nMAINTAINER nobody\n"})
    assert "DL3003" in refused(broken) or "DL4000" in refused(broken)


WHEELS = Wheels(Path(), {"torch-1-py3.whl": "a" * 64, "numpy-2-py3.whl": "b" * 64})


def test_equal_inputs_have_equal_tags_whatever_their_order() -> None:
    turned = Wheels(Path("elsewhere"), dict(reversed(WHEELS.files.items())))
    image = recipe("cpu", "torch")
    assert image_tag(image, "sha256:base", WHEELS) == image_tag(recipe("cpu", "torch"), "sha256:base", turned)
    assert image_tag(image, "sha256:base", WHEELS).startswith("levelfield/torch-cpu:")


@pytest.mark.parametrize(
    "change",
    [
        lambda image, base, wheels: (image.model_copy(update={"dockerfile": image.dockerfile + "\n"}), base, wheels),
        lambda image, base, wheels: (image.model_copy(update={"requirements": ("torch==2",)}), base, wheels),
        lambda image, base, wheels: (image, "sha256:other", wheels),
        lambda image, base, wheels: (image, base, replace(wheels, files={**wheels.files, "torch-1-py3.whl": "c" * 64})),
        lambda image, base, wheels: (image, base, replace(wheels, files={"numpy-2-py3.whl": "b" * 64})),
    ],
    ids=["Dockerfile", "requirements", "base image", "content of a wheel", "a wheel less"],
)
def test_a_change_of_any_input_changes_the_tag(change: Callable[..., tuple[Any, ...]]) -> None:
    before = (recipe("cpu", "torch"), "sha256:base", WHEELS)
    assert image_tag(*before) != image_tag(*change(*before))


def test_a_changed_template_or_vendor_changes_the_dockerfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe("cpu", "torch").dockerfile
    assert recipe("cpu", "torch", given="other:1").dockerfile != before
    shutil.copytree(checkout() / "docker", tmp_path / "docker")
    with (tmp_path / "docker" / "base.Dockerfile.j2").open("a") as file:
        file.write("USER nobody\n")
    monkeypatch.setattr(image_recipe, "checkout", lambda: tmp_path)
    assert recipe("cpu", "torch").dockerfile == before + "USER nobody\n"


def test_a_template_that_names_what_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "base.Dockerfile.j2").write_text("FROM {{ base.refrence }}\n")
    monkeypatch.setattr(image_recipe, "checkout", lambda: tmp_path)
    with pytest.raises(UsageError, match=r"base.Dockerfile.j2: UndefinedError.*refrence"):
        recipe("cpu", "torch")


def test_an_image_with_a_digest_is_that_image() -> None:
    digest = "sha256:" + "0" * 64
    assert Image(image="acme/torch:1", digest=digest, source="Acme").reference == f"acme/torch:1@{digest}"


def test_a_vendor_without_an_image_is_told_where_to_name_one() -> None:
    registry = Registry()
    implementation, folder = registry.implementation("torch")
    file = registry.vendor_file("cpu").model_copy(update={"images": {}})
    with pytest.raises(UsageError, match=r"\bcpu\b.*torch: .*--base-image"):
        image_plan(implementation, folder, file, EnvironmentPackages(("torch==2.13.0",)), None)


def test_an_image_that_brings_the_framework_gets_no_wheels() -> None:
    registry = Registry()
    implementation, folder = registry.implementation("torch")
    brings = Image(image="acme/torch:1", python="python3.9", has_framework=True, source="Acme")
    file = registry.vendor_file("cpu").model_copy(update={"images": {"torch": brings}})
    image = image_plan(implementation, folder, file, EnvironmentPackages(("torch==2.13.0",)), None)
    assert (image.requirements, image.python) == ((), "python3.9")
    assert "COPY" not in image.dockerfile and fetch_image_wheels(image, offline=True, say=print) == Wheels(Path(), {})


def test_a_given_image_brings_the_framework_where_nothing_is_installed() -> None:
    assert recipe("cpu", "torch", given="mine:1").requirements != ()
    brings = recipe("ascend", "torch", given="mine:1")
    assert (brings.requirements, brings.python) == ((), "python3") and brings.dockerfile.startswith("FROM mine:1 ")


def test_requirements_for_nothing_need_an_image_that_brings_the_framework() -> None:
    registry = Registry()
    implementation, folder = registry.implementation("torch")
    with pytest.raises(UsageError, match="has_framework"):
        image_plan(implementation, folder, registry.vendor_file("cpu"), EnvironmentPackages(), None)


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_damaged_wheel_is_refused_before_the_build(damage: str, tmp_path: Path) -> None:
    wheel = tmp_path / "torch-1-py3.whl"
    wheel.write_bytes(b"content")
    good = Wheels(tmp_path, {wheel.name: "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"})
    verify_wheels(good)
    wheel.write_bytes(b"contenu") if damage == "changed" else wheel.unlink()
    with pytest.raises(RunFailed, match=r"torch-1-py3\.whl: .*\bed7002b439e9"):
        verify_wheels(good)


def test_offline_without_wheels_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunFailed, match=r"--offline.*levelfield/torch-cpu"):
        fetch_image_wheels(recipe("cpu", "torch"), offline=True, say=print)


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "megatron"])
def test_an_accelerators_image_has_the_compiler_that_triton_starts(framework: str) -> None:
    words = recipe("nvidia", framework).dockerfile.split()
    assert {"gcc", "libc6-dev", "python3-dev"} <= set(words)
    assert "gcc" not in recipe("cpu", framework).dockerfile
    assert "gcc" not in recipe("nvidia", framework, given="mine:1").dockerfile  # the user's image has its own


@pytest.mark.parametrize("vendor", ["cpu", "nvidia"])
def test_the_python_of_every_image_is_one_that_its_pins_are_for(vendor: str) -> None:
    assert recipe(vendor, "oneflow").base.python_version == "3.10"
    registry = Registry()
    implementation, folder = registry.implementation("oneflow")
    file = registry.vendor_file(vendor)
    older = file.model_copy(update={"images": {"base": file.images["base"]}})
    with pytest.raises(UsageError, match=r"^oneflow .*3\.11.*==3\.10\.\*"):
        image_plan(
            implementation, folder, older, implementation.requirements[file.device_kind].environment_packages(), None
        )


def test_a_users_image_brings_the_framework_where_he_says_so() -> None:
    registry = Registry()
    implementation, folder = registry.implementation("megatron")
    file = registry.vendor_file("nvidia")
    packages = implementation.requirements["nvidia"].environment_packages()
    image = image_plan(implementation, folder, file, packages, "mine:1", base_has_framework=True)
    assert (image.requirements, image.builds, image.python) == ((), (), "python3") and "COPY" not in image.dockerfile
    with pytest.raises(UsageError, match=r"--base-has-framework:.*base image"):
        image_plan(implementation, folder, file, packages, None, base_has_framework=True)


def test_what_is_built_for_an_image_is_in_its_requirements_and_its_tag() -> None:
    registry = Registry()
    implementation, folder = registry.implementation("torch")
    needs, file = implementation.requirements["nvidia"], registry.vendor_file("nvidia")
    plain = image_plan(implementation, folder, file, needs.environment_packages(), None)
    built = image_plan(implementation, folder, file, needs.environment_packages(["fp8"]), None)
    assert built.packages[-1] == "torchao==0.18.0" and plain.builds == ()
    assert image_tag(plain, "sha256:base", WHEELS) != image_tag(built, "sha256:base", WHEELS)
