"""`wheels`: fetches into a folder all that environments and images are made from, for machines without network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.terminal import Terminal
from levelfield.errors import NotHere
from levelfield.installer import WHEELS
from levelfield.plan.build_checks import missing
from levelfield.plan.environment import interpreter_for
from levelfield.plan.image_recipe import PIP_REQUIREMENT
from levelfield.report.words import gib
from levelfield.run.runtimes.wheels import fetch_into
from levelfield.specs.build_needs import Stages

LOCKS = ("requirements.lock", "requirements-dev.lock")


class Group(NamedTuple):
    """Requirements of one Python. arguments: as pip takes them. stages: what is built against them, and the index."""

    name: str
    python: str
    arguments: tuple[str, ...]
    stages: Stages = Stages()

    @property
    def named_index(self) -> str | None:
        return self.stages.index.setting if self.stages.index else None


def execute(options: argparse.Namespace) -> int:
    """Fetch the wheels of Levelfield, of its tests and of the frameworks. Return 0."""
    terminal = Terminal(quiet=False)
    folder: Path = options.folder.absolute()
    for group in [_platform(), *_frameworks(options, terminal)]:
        terminal.say(f"fetching the wheels of {group.name} with {group.python}")
        fetch_into(folder, group.python, group.arguments, terminal.say, group.stages.steps, group.named_index)
    sizes = [path.stat().st_size for path in folder.glob("*.whl")]
    print(f"{folder}: {len(sizes)} wheels, {gib(sum(sizes))}")
    print(f"To use them: {WHEELS}={folder}, on a machine with the same system and Python.")
    return 0


def _platform() -> Group:
    locks = [word for name in LOCKS for word in ("-r", str(checkout() / name))]
    return Group("Levelfield and its tests", sys.executable, ("--no-deps", *locks))


def _frameworks(options: argparse.Namespace, terminal: Terminal) -> Iterator[Group]:
    """Return a group for each framework. One that was not named is left out where this machine has no Python for it."""
    registry = Registry(options.plugins, case_files=options.case_file)
    kind = registry.vendor_file(options.vendor).device_kind
    for name in options.framework or registry.labels():
        try:
            yield _framework(registry, name, kind, tuple(options.uses))
        except NotHere as error:
            if options.framework:
                raise
            terminal.say(f"left out: {error}")


def _framework(registry: Registry, name: str, kind: str, uses: tuple[str, ...]) -> Group:
    file, _folder = registry.labelled(name)
    if kind not in file.requirements:
        raise NotHere(f"{name} on {kind}: the vendor's own Python or image brings it; there are no wheels to fetch")
    python, stages = interpreter_for(file, kind).python, file.requirements[kind].stages(uses)
    if lacking := list(missing(stages, None, is_fetched=False)):
        raise NotHere(f"{name} on {kind}: " + "\n  ".join(lacking))
    return Group(f"{name} on {kind}", python, (PIP_REQUIREMENT, *stages.first), stages)
