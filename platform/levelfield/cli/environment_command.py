"""`environment` (machines and environments): what trainings need, ahead of a run or without network
`environment make`: make the environments of these frameworks
`environment wheels`: fetch packages into a folder, for machines without network
`environment wheels fetch`: download wheels into a folder
`environment image`: images for --runtime docker: build, export
`environment image build`: build the images of these frameworks
`environment image export`: write an image, or its build context, to a tar file
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import registry_of
from levelfield.cli.site_options import BASE_HAS_FRAMEWORK_HELP, BASE_IMAGE_HELP
from levelfield.cli.terminal import Terminal, short_path
from levelfield.errors import NotHere
from levelfield.installer import WHEELS
from levelfield.report.words import gib
from levelfield.rundir.directory import replacement_file

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.run.runtimes.images import BuiltImage
    from levelfield.specs.plan import EnvironmentPlan, ImagePlan
    from levelfield.specs.requirements import EnvironmentPackages

_ENVIRONMENT_HELP = """\
Make what the trainings of frameworks need, ahead of a run: Python environments
in .venvs/, images, and folders of wheels for machines without network.

examples:
  run_benchmarks.py environment make torch
  run_benchmarks.py environment image build torch --vendor nvidia
  run_benchmarks.py environment wheels fetch DIR torch
"""
_MAKE_HELP = """\
Make the environments of these frameworks, as a run makes them: from the pinned
packages, in .venvs/FRAMEWORK-VENDOR. What is whole already stays. The driver
is checked first, where the vendor's tool shows one; --any-driver leaves that
out, so that a machine without devices can have it too. pip has to take torch
from an index with CUDA builds, as the public one has for Linux.

examples:
  run_benchmarks.py environment make torch deepspeed
  run_benchmarks.py environment make torch --vendor nvidia --any-driver
"""
_WHEELS_HELP = """\
Fetch packages into a folder, for machines without network.

example:
  run_benchmarks.py environment wheels fetch DIR
"""
_FETCH_HELP = """\
Download into DIR the wheels of Levelfield, of its tests and of the frameworks,
from the index that pip is configured for. With LEVELFIELD_WHEELS=DIR every
environment and image is then made from that folder alone, on a machine with
the same system and Python. --vendor chooses the kind of device.

examples:
  run_benchmarks.py environment wheels fetch DIR torch
  run_benchmarks.py environment wheels fetch DIR torch paddle --vendor nvidia
"""
_IMAGE_HELP = """\
Make the images of --runtime docker. A run builds a missing image itself.
`docker image ls` and `docker image prune --all` list and remove them, with
--filter label=levelfield.image.

examples:
  run_benchmarks.py environment image build torch megatron --vendor nvidia
  run_benchmarks.py environment image export torch --output torch.tar
"""
_IMAGE_BUILD_HELP = """\
Build the images of frameworks. An image that exists is not built again.

example:
  run_benchmarks.py environment image build torch megatron --vendor nvidia
"""
_IMAGE_EXPORT_HELP = """\
Write an image, or its build context, to a tar file.

examples:
  run_benchmarks.py environment image export torch --output torch.tar
  run_benchmarks.py environment image export torch --context --output torch.tar
"""

# One command of pip takes either files with hashes or files without. An index may have its own build of torch.
LOCK_FILES = {
    "Levelfield and its tests": ("requirements.lock", "requirements-dev.lock"),
    "the tests of models": ("requirements-torch.lock",),
}


def _make(options: argparse.Namespace) -> int:
    """Make the environments that do not exist, and print the Python of each. Return 0."""
    from levelfield.run.runtimes.environments import use_environment

    registry, uses = registry_of(options), tuple(options.uses)
    driver = None if options.any_driver else registry.machine.driver(options.vendor)
    plans = [
        _framework_environment(registry, framework, options.vendor, uses, driver) for framework in options.framework
    ]
    for plan in plans:
        with use_environment(plan, Terminal().say):
            print(short_path(Path(plan.python)))
    return 0


def _framework_environment(
    registry: Registry, framework: str, vendor: str, uses: tuple[str, ...], driver: str | None
) -> EnvironmentPlan:
    """Return the plan of the environment. Raises NotHere, before any download, with what this machine lacks for it."""
    from levelfield.plan.environment import plan_environment

    manifest, _ = registry.implementation_of_label(framework)
    device_kind = registry.vendor_file(vendor).device_kind
    if device_kind not in manifest.requirements:
        raise NotHere(
            f"{framework} on {device_kind}: the vendor's own Python or image brings it; there is no environment to make"
        )
    return plan_environment(
        manifest,
        device_kind,
        manifest.requirements[device_kind].environment_packages(uses),
        python=None,
        runtime="process",
        driver=driver,
    )


def _fetch(options: argparse.Namespace) -> int:
    """Fetch the wheels of Levelfield, of its tests and of the frameworks. Return 0.

    A framework that was not named is left out where this machine has no Python for it.
    """
    from levelfield.plan.image_recipe import PIP_REQUIREMENT
    from levelfield.run.runtimes.wheels import fetch_wheels
    from levelfield.specs.requirements import EnvironmentPackages

    terminal, registry, folder = Terminal(), registry_of(options), options.folder.absolute()
    device_kind = registry.vendor_file(options.vendor).device_kind
    groups = [
        (
            name,
            sys.executable,
            ("--no-deps", *(f"--requirement={checkout() / lock}" for lock in locks)),
            EnvironmentPackages(),
        )
        for name, locks in LOCK_FILES.items()
    ]
    for name in options.framework or registry.framework_labels():
        try:
            python, packages = _interpreter_and_packages(registry, name, device_kind, tuple(options.uses))
        except NotHere as error:
            if options.framework:
                raise
            terminal.say(f"left out: {error}")
        else:
            groups.append((f"{name} on {device_kind}", python, (PIP_REQUIREMENT, *packages.pip_packages), packages))
    for name, python, arguments, packages in groups:
        terminal.say(f"fetching the wheels of {name} with {python}")
        index = packages.index.setting if packages.index else None
        fetch_wheels(folder, python, arguments, terminal.say, packages.build_steps, index)
    sizes = [path.stat().st_size for path in folder.glob("*.whl")]
    print(f"{folder}: {len(sizes)} wheels, {gib(sum(sizes))}")
    print(f"To use them: {WHEELS}={folder}, on a machine with the same system and Python.")
    return 0


def _interpreter_and_packages(
    registry: Registry, framework: str, device_kind: str, uses: tuple[str, ...]
) -> tuple[str, EnvironmentPackages]:
    from levelfield.plan.build_checks import missing_need_sentences
    from levelfield.plan.environment import interpreter_for

    manifest, _ = registry.implementation_of_label(framework)
    if device_kind not in manifest.requirements:
        raise NotHere(
            f"{framework} on {device_kind}: the vendor's own Python or image brings it; there are no wheels to fetch"
        )
    python, packages = (
        interpreter_for(manifest, device_kind).python,
        manifest.requirements[device_kind].environment_packages(uses),
    )
    if lacking := list(missing_need_sentences(packages, driver=None, is_already_made=False)):
        raise NotHere(f"{framework} on {device_kind}: " + "\n  ".join(lacking))
    return python, packages


def _image_plan(
    registry: Registry, framework: str, vendor_name: str, base: str | None, base_has_framework: bool
) -> ImagePlan:
    from levelfield.plan.image_recipe import image_plan
    from levelfield.specs.requirements import EnvironmentPackages

    manifest, folder = registry.implementation_of_label(framework)
    vendor = registry.vendor_file(vendor_name)
    requirements = manifest.requirements.get(vendor.device_kind)
    packages = requirements.environment_packages() if requirements else EnvironmentPackages()
    base = base or os.environ.get("LEVELFIELD_BASE_IMAGE")
    return image_plan(manifest, folder, vendor, packages, base, base_has_framework)


def _ready_image(image: ImagePlan, offline: bool) -> BuiltImage:
    from levelfield.run.runtimes import images
    from levelfield.run.runtimes.engine import connect_or_fail
    from levelfield.specs.plan import ContainerPlan
    from levelfield.specs.vendor import ContainerOptions

    plan = ContainerPlan(image=image, options=ContainerOptions(), visible={}, offline=offline)  # no devices
    with connect_or_fail() as client:
        return images.prepare_image(client, plan, Terminal().say)


def _build(options: argparse.Namespace) -> int:
    registry = registry_of(options)
    for framework in options.framework:
        image = _image_plan(registry, framework, options.vendor, options.base_image, options.base_has_framework)
        built = _ready_image(image, options.offline)
        print(f"{built.tag}  {'built' if built.is_new else 'exists'}  {built.id}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from levelfield.run.runtimes import images
    from levelfield.run.runtimes.engine import connect_or_fail
    from levelfield.run.runtimes.wheels import fetch_image_wheels, verify_wheels

    output, base_image = options.output, options.base_image
    image = _image_plan(registry_of(options), options.framework, options.vendor, base_image, options.base_has_framework)
    if options.context:
        wheels = fetch_image_wheels(image, options.offline, Terminal().say)
        verify_wheels(wheels)
        with images.build_context(image, wheels) as tar, replacement_file(output, "b", through_link=True) as file:
            shutil.copyfileobj(tar, file)
        print(f"{output}: the build context; build it: `docker build -t NAME - < {output}`")
        return 0
    built = _ready_image(image, options.offline)
    with connect_or_fail() as client:
        images.export_image(client, built.tag, output)
    print(f"{output}: {built.tag}; load it: `docker load -i {output}`")
    return 0


def _add_make_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    option("--any-driver", action="store_true", help="whatever driver is here, if any: for a machine without devices")
    _add_device_options(parser)


def _add_fetch_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("folder", type=Path, metavar="DIR", help="the folder to fill")
    option("framework", nargs="*", metavar="FRAMEWORK", help="such as torch or jax_0.10.1 (default: every one)")
    _add_device_options(parser)


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vendor", default="cpu", help="for this vendor's devices (default: cpu)")
    parser.add_argument(
        "--with",
        dest="uses",
        action="append",
        choices=("fp8", "flash_attn"),
        default=[],
        help="also what this choice needs; may be repeated",
    )


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    _add_image_options(parser)


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("framework", metavar="FRAMEWORK", help="such as torch")
    _add_image_options(parser)
    option("--output", type=Path, required=True, metavar="FILE", help="the tar file to write")
    option("--context", action="store_true", help="write Dockerfile and wheels, to build elsewhere; needs no engine")


def _add_image_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vendor", default="cpu", help="build for this vendor's devices (default: cpu)")
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE_HELP)
    parser.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK_HELP)
    parser.add_argument("--offline", action="store_true", help="fetch neither wheels nor images")


COMMANDS = {
    "environment": Command(_ENVIRONMENT_HELP),
    "environment make": Command(_MAKE_HELP, _add_make_options, _make),
    "environment wheels": Command(_WHEELS_HELP),
    "environment wheels fetch": Command(_FETCH_HELP, _add_fetch_options, _fetch),
    "environment image": Command(_IMAGE_HELP),
    "environment image build": Command(_IMAGE_BUILD_HELP, _add_build_options, _build),
    "environment image export": Command(_IMAGE_EXPORT_HELP, _add_export_options, _export),
}
