"""`environment`: makes the Python environments of frameworks ahead of a run, also for devices that are not here."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.terminal import Terminal, shown
from levelfield.errors import NotHere
from levelfield.plan.environment import environment_of
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.specs.plan import EnvironmentPlan


def execute(options: argparse.Namespace) -> int:
    """Make what is not made, and print the Python of each. Return 0."""
    registry, terminal = Registry(options.plugins, case_files=options.case_file), Terminal(quiet=False)
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
