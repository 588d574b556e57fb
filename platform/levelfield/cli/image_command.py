"""`environment image`: images for --runtime docker: build, list, prune, export
`environment image build`: build the images of these frameworks
`environment image show`: print the Dockerfile
`environment image list`: list Levelfield's images on the engine
`environment image prune`: remove old images and the remains of stopped builds
`environment image export`: write an image, or its build context, to a tar file
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import BASE_HAS_FRAMEWORK, BASE_IMAGE, json_option, registry_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import RunFailed
from levelfield.plan.image_recipe import image_plan
from levelfield.report.words import gib
from levelfield.run.runtimes import images
from levelfield.run.runtimes.engine import EngineError, answers, connect
from levelfield.run.runtimes.wheels import verify, wheels_of
from levelfield.rundir.directory import replacing
from levelfield.specs.build_needs import Stages
from levelfield.specs.container import ContainerOptions, ContainerPlan, ImagePlan

IMAGE = """\
Manage the images of --runtime docker. A run builds a missing image itself.

examples:
  run_benchmarks.py environment image build torch megatron --vendor nvidia
  run_benchmarks.py environment image list
  run_benchmarks.py environment image export torch --output torch.tar
"""
BUILD = """\
Build the images of frameworks. An image that exists is not built again.

example:
  run_benchmarks.py environment image build torch megatron --vendor nvidia
"""
SHOW = """\
Print the Dockerfile of a framework's image.

example:
  run_benchmarks.py environment image show torch --vendor nvidia
"""
LIST = """\
List Levelfield's images on the engine, with size (GiB) and creation time.

example:
  run_benchmarks.py environment image list --json
"""
PRUNE = """\
Remove old images and the remains of stopped builds. The newest image of each
framework and vendor stays.

examples:
  run_benchmarks.py environment image prune
  run_benchmarks.py environment image prune --all
"""
EXPORT = """\
Write an image, or its build context, to a tar file.

examples:
  run_benchmarks.py environment image export torch --output torch.tar
  run_benchmarks.py environment image export torch --context --output torch.tar
"""


def _recipe(options: argparse.Namespace, framework: str) -> ImagePlan:
    registry = registry_of(options)
    implementation, folder = registry.labelled(framework)
    vendor = registry.vendor_file(options.vendor)
    needs = implementation.requirements.get(vendor.device_kind)
    given = options.base_image or os.environ.get("LEVELFIELD_BASE_IMAGE")
    return image_plan(
        implementation, folder, vendor, needs.stages() if needs else Stages(), given, options.base_has_framework
    )


def _ready(options: argparse.Namespace, framework: str) -> images.Built:
    plan = ContainerPlan(
        image=_recipe(options, framework), options=ContainerOptions(), visible={}, offline=options.offline
    )
    with connect() as client, answers():
        return images.ready(client, plan, Terminal(quiet=False).say)


def _build(options: argparse.Namespace) -> None:
    for framework in options.framework:
        built = _ready(options, framework)
        print(f"{built.tag}  {'built' if built.fresh else 'exists'}  {built.id}")


def _show(options: argparse.Namespace) -> None:
    print(_recipe(options, options.framework).dockerfile, end="")


def _list(options: argparse.Namespace) -> None:
    with connect() as client, answers():
        found = images.listed(client)
    if options.json:
        print(json.dumps([asdict(image) for image in found], indent=2))
        return
    for image in found:
        print(f"{image.tag:<46}  {gib(image.size_bytes):>9}  {image.created[:19]}")
    if not found:
        print("found no image of Levelfield on this engine; build one: `environment image build FRAMEWORK`")


def _prune(options: argparse.Namespace) -> None:
    with connect() as client, answers():
        gone, freed = images.prune(client, options.all)
    for tag in gone:
        print(f"removed {tag}")
    print(f"freed up to {gib(freed)}; layers that other images share stay")


def _export(options: argparse.Namespace) -> None:
    if options.context:
        recipe = _recipe(options, options.framework)
        wheels = wheels_of(recipe, options.offline, Terminal(quiet=False).say)
        verify(wheels)
        with images.context(recipe, wheels) as tar, replacing(options.output, "b") as file:
            shutil.copyfileobj(tar, file)
        print(f"{options.output}: the build context; build it: `docker build -t NAME - < {options.output}`")
        return
    built = _ready(options, options.framework)
    with connect() as client, answers():
        images.export(client, built.tag, options.output)
    print(f"{options.output}: {built.tag}; load it: `docker load -i {options.output}`")


def _on_engine(action: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """Return the action with an error of the engine as RunFailed."""

    def call(options: argparse.Namespace) -> int:
        try:
            action(options)
        except EngineError as error:
            raise RunFailed(f"the container engine: {error}") from None
        return 0

    return call


def _build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    _recipe_options(parser)


def _show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", metavar="FRAMEWORK", help="such as torch")
    _recipe_options(parser)


def _prune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="remove every image of Levelfield")


def _export_options(parser: argparse.ArgumentParser) -> None:
    _show_options(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the tar file to write")
    parser.add_argument(
        "--context", action="store_true", help="write Dockerfile and wheels, to build elsewhere; needs no engine"
    )


def _recipe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vendor", default="cpu", help="build for this vendor's devices (default: cpu)")
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)
    parser.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK)
    parser.add_argument("--offline", action="store_true", help="fetch neither wheels nor images")


COMMANDS = {
    "environment image": Command(IMAGE),
    "environment image build": Command(BUILD, _build_options, _on_engine(_build)),
    "environment image show": Command(SHOW, _show_options, _on_engine(_show)),
    "environment image list": Command(LIST, json_option, _on_engine(_list)),
    "environment image prune": Command(PRUNE, _prune_options, _on_engine(_prune)),
    "environment image export": Command(EXPORT, _export_options, _on_engine(_export)),
}
