#!/usr/bin/env python3
"""Makes every framework's environment for the processor, as a run would; `make test` does so beside its first tests.

.venvs/dev/bin/python tools/environments.py
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter

from levelfield.catalog.registry import Registry
from levelfield.errors import NotHere
from levelfield.plan.environment import plan_environment
from levelfield.run.runtimes.environments import use_environment

KIND = "cpu"


def main() -> None:
    registry = Registry()
    for framework in registry.frameworks:
        try:
            make(registry, framework)
        except NotHere as error:  # the tests that need it fail and name it
            print(error, flush=True)


def make(registry: Registry, framework: str) -> None:
    implementation, _folder = registry.implementation(framework)
    plan = plan_environment(
        implementation, KIND, implementation.requirements[KIND].environment_packages(), None, "process"
    )
    with use_environment(plan, say):
        pass


def say(text: str) -> None:
    """Passes on what the platform says, without pip's list of packages."""
    if not text.startswith(("Collecting", "Installing", "Building")):
        print(text, flush=True)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
