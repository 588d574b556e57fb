"""The Python of each other framework's environment for the cpu."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.plan.environment import environment_of
from levelfield.run.runtimes.environments import environment_in_use


@contextlib.contextmanager
def interpreters() -> Iterator[Callable[[str], Path]]:
    """Framework to its Python; made on first use as for a run, and in use until the block ends.

    Several processes may ask at once: one makes it, the others wait.
    """
    registry = Registry()
    with contextlib.ExitStack() as in_use:

        @functools.cache
        def interpreter(framework: str) -> Path:
            implementation, _folder = registry.implementation(framework)
            plan = environment_of(implementation, "cpu", implementation.requirements["cpu"].packages, None, "process")
            in_use.enter_context(environment_in_use(plan, print))
            return Path(plan.python)

        yield interpreter
