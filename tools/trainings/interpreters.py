"""The Python of each framework for the cpu: this one for torch, those of their environments for the others."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.plan.environment import plan_environment
from levelfield.run.runtimes.environments import use_environment


@contextlib.contextmanager
def interpreters(say: Callable[[str], None] = print) -> Iterator[Callable[[str], Path]]:
    """Framework to its Python; an environment is made on first use as for a run, and in use until the block ends.

    Several processes may need it at once: one makes it, the others wait. This Python has the torch of torch's
    environment, and one process with torch imported is enough (warm.py); tests/e2e makes that environment in a clone.
    """
    registry = Registry()
    with contextlib.ExitStack() as in_use:

        @functools.cache
        def interpreter(framework: str) -> Path:
            implementation, _folder = registry.implementation(framework)
            if framework == "torch" and version("torch").partition("+")[0] == implementation.version:
                return Path(sys.executable)
            plan = plan_environment(
                implementation, "cpu", implementation.requirements["cpu"].environment_packages(), None, "process"
            )
            in_use.enter_context(use_environment(plan, say))
            return Path(plan.python)

        yield interpreter
