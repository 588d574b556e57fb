"""`framework`: begins a framework's folder with a worked example."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.terminal import shown
from levelfield.report.words import wrapped
from levelfield.testing.framework_kit.framework_scaffold import new_framework, new_framework_package


def execute(options: argparse.Namespace) -> int:
    return _new(options)


def _new(options: argparse.Namespace) -> int:
    registry, place = Registry(options.plugins), options.folder or Path.cwd()
    if options.package:
        root = new_framework_package(options.name, place, registry)[0].parent
        _say(f"created  {shown(root)}, a package with a training that works. Next:")
        return _next(options.name, root / f"levelfield_{options.name.replace('-', '_')}")
    made = new_framework(options.name, place, registry)
    _say(f"created  {shown(made[0].parent)}, a training that works. Next:")
    return _next(options.name, place)


def _next(name: str, plugins: Path) -> int:
    """Print the commands of a first run and of the page that goes on."""
    here = plugins.absolute() == checkout().absolute()
    where = "" if here else f" --plugins {shown(plugins.absolute())}"
    _say(f"         python run_benchmarks.py --case llama3_8b:{name}{where}")
    _say("         and then docs/writing-a-framework.md, step by step")
    return 0


def _say(text: str) -> None:
    print(wrapped(text, 9), flush=True)
