"""Adapters are loaded as the platform loads them: by path, for vendors/ is no package."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

from levelfield.specs.base import load
from levelfield.specs.vendor import VendorFile

VENDORS = Path(__file__).resolve().parents[2] / "vendors"


def load_adapter(vendor: str) -> ModuleType:
    """vendors/<vendor>/adapter.py as a module that is nowhere registered."""
    spec = importlib.util.spec_from_file_location(f"adapter_of_{vendor}", VENDORS / vendor / "adapter.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def load_spec(vendor: str) -> VendorFile:
    """Read once: tests ask for it thousands of times, and it is frozen."""
    return load(VendorFile, VENDORS / vendor / "vendor.yaml")


def tool(folder: Path, name: str, body: str) -> None:
    """Write a program of the shell under the name of a maker's tool."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
