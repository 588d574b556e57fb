"""`image`: builds, lists, removes and exports the images of --runtime docker."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.terminal import Terminal
from levelfield.errors import RunFailed
from levelfield.plan.image_recipe import image_plan
from levelfield.report.words import gib
from levelfield.run.runtimes import images
from levelfield.run.runtimes.engine import EngineError, answers, connect
from levelfield.run.runtimes.wheels import verify, wheels_of
from levelfield.specs.build_needs import Stages
from levelfield.specs.container import ContainerOptions, ContainerPlan, ImagePlan


def execute(options: argparse.Namespace) -> int:
    action = {"build": _build, "list": _list, "prune": _prune, "export": _export, "show": _show}[options.action]
    try:
        action(options)
    except EngineError as error:
        raise RunFailed(f"the container engine: {error}") from None
    return 0


def _recipe(options: argparse.Namespace, framework: str) -> ImagePlan:
    registry = Registry(options.plugins, case_files=options.case_file)
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
        print("found no image of Levelfield on this engine; build one: `image build FRAMEWORK`")


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
        with images.context(recipe, wheels) as tar, Path(options.output).open("wb") as file:
            shutil.copyfileobj(tar, file)
        print(f"{options.output}: the build context; build it: `docker build -t NAME - < {options.output}`")
        return
    built = _ready(options, options.framework)
    with connect() as client, answers():
        images.export(client, built.tag, options.output)
    print(f"{options.output}: {built.tag}; load it: `docker load -i {options.output}`")
