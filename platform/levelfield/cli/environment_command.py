"""`environment` (machines and environments): what trainings need, ahead of a run or without network
`environment make`: make the environments of these frameworks
`environment wheels`: fetch packages into a folder, for machines without network
`environment wheels fetch`: download wheels into a folder
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import registry_of
from levelfield.cli.terminal import Terminal, shown
from levelfield.errors import NotHere
from levelfield.installer import WHEELS
from levelfield.plan.build_checks import missing
from levelfield.plan.environment import environment_of, interpreter_for
from levelfield.plan.image_recipe import PIP_REQUIREMENT
from levelfield.report.words import gib
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.run.runtimes.wheels import fetch_into
from levelfield.specs.plan import EnvironmentPlan
from levelfield.specs.requirements import Stages

ENVIRONMENT = """\
Make what the trainings of frameworks need, ahead of a run: Python environments
in .venvs/, images, and folders of wheels for machines without network.

examples:
  run_benchmarks.py environment make torch
  run_benchmarks.py environment image build torch --vendor nvidia
  run_benchmarks.py environment wheels fetch DIR torch
"""
MAKE = """\
Make the environments of these frameworks, as a run makes them: from the pinned
packages, in .venvs/FRAMEWORK-VENDOR. What is whole already stays. The driver
is checked first, where the vendor's tool shows one; --any-driver leaves that
out. So a machine without devices gets what `plan --rehearse` needs. pip has to
take torch from an index with CUDA builds, as the public one has for Linux.

examples:
  run_benchmarks.py environment make torch deepspeed
  run_benchmarks.py environment make torch --vendor nvidia --any-driver
"""
WHEELS_HELP = """\
Fetch packages into a folder, for machines without network.

example:
  run_benchmarks.py environment wheels fetch DIR
"""
FETCH = """\
Download into DIR the wheels of Levelfield, of its tests and of the frameworks,
from the index that pip is configured for. With LEVELFIELD_WHEELS=DIR every
environment and image is then made from that folder alone, on a machine with
the same system and Python. --vendor chooses the kind of device.

examples:
  run_benchmarks.py environment wheels fetch DIR torch
  run_benchmarks.py environment wheels fetch DIR torch paddle --vendor nvidia
"""

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


def _fetch(options: argparse.Namespace) -> int:
    """Fetch the wheels of Levelfield, of its tests and of the frameworks. Return 0."""
    terminal = Terminal(quiet=False)
    folder: Path = options.folder.absolute()
    for group in [_platform(), *_groups(options, terminal)]:
        terminal.say(f"fetching the wheels of {group.name} with {group.python}")
        fetch_into(folder, group.python, group.arguments, terminal.say, group.stages.steps, group.named_index)
    sizes = [path.stat().st_size for path in folder.glob("*.whl")]
    print(f"{folder}: {len(sizes)} wheels, {gib(sum(sizes))}")
    print(f"To use them: {WHEELS}={folder}, on a machine with the same system and Python.")
    return 0


def _platform() -> Group:
    locks = [word for name in LOCKS for word in ("-r", str(checkout() / name))]
    return Group("Levelfield and its tests", sys.executable, ("--no-deps", *locks))


def _groups(options: argparse.Namespace, terminal: Terminal) -> Iterator[Group]:
    """Return a group for each framework. One that was not named is left out where this machine has no Python for it."""
    registry = registry_of(options)
    kind = registry.vendor_file(options.vendor).device_kind
    for name in options.framework or registry.labels():
        try:
            yield _group(registry, name, kind, tuple(options.uses))
        except NotHere as error:
            if options.framework:
                raise
            terminal.say(f"left out: {error}")


def _group(registry: Registry, name: str, kind: str, uses: tuple[str, ...]) -> Group:
    file, _folder = registry.labelled(name)
    if kind not in file.requirements:
        raise NotHere(f"{name} on {kind}: the vendor's own Python or image brings it; there are no wheels to fetch")
    python, stages = interpreter_for(file, kind).python, file.requirements[kind].stages(uses)
    if lacking := list(missing(stages, None, is_fetched=False)):
        raise NotHere(f"{name} on {kind}: " + "\n  ".join(lacking))
    return Group(f"{name} on {kind}", python, (PIP_REQUIREMENT, *stages.first), stages)


def _make(options: argparse.Namespace) -> int:
    """Make what is not made, and print the Python of each. Return 0."""
    registry, terminal = registry_of(options), Terminal(quiet=False)
    plans = [_environment(registry, name, options) for name in options.framework]
    for plan in plans:
        with environment_in_use(plan, terminal.say):
            print(shown(Path(plan.python)))
    return 0


def _environment(registry: Registry, name: str, options: argparse.Namespace) -> EnvironmentPlan:
    """Return the environment. Raises NotHere, before any download, with what this machine lacks for it."""
    file, _folder = registry.labelled(name)
    kind = registry.vendor_file(options.vendor).device_kind
    if kind not in file.requirements:
        raise NotHere(f"{name} on {kind}: the vendor's own Python or image brings it; there is no environment to make")
    driver = None if options.any_driver else registry.machine.driver(options.vendor)
    stages = file.requirements[kind].stages(tuple(options.uses))
    return environment_of(file, kind, stages, None, "process", driver=driver)


def _make_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("framework", nargs="+", metavar="FRAMEWORK", help="such as torch or jax_0.10.1")
    parser.add_argument(
        "--any-driver",
        action="store_true",
        help="whatever driver is here, if any: for `plan --rehearse`, which needs no device",
    )
    _device_options(parser)


def _fetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to fill")
    parser.add_argument(
        "framework", nargs="*", metavar="FRAMEWORK", help="such as torch or jax_0.10.1 (default: every one)"
    )
    _device_options(parser)


def _device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vendor", default="cpu", help="for this vendor's devices (default: cpu)")
    parser.add_argument(
        "--with",
        dest="uses",
        action="append",
        choices=("fp8", "flash_attn"),
        default=[],
        help="also what this choice needs; may be repeated",
    )


COMMANDS = {
    "environment": Command(ENVIRONMENT),
    "environment make": Command(MAKE, _make_options, _make),
    "environment wheels": Command(WHEELS_HELP),
    "environment wheels fetch": Command(FETCH, _fetch_options, _fetch),
}
