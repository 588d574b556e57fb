"""The registry that a command's options ask for."""

from __future__ import annotations

import argparse

from levelfield.catalog.registry import Registry, private_chips


def registry_of(options: argparse.Namespace) -> Registry:
    """Plugins of --plugins, and chips of --chips or of the user's own file. Raises UsageError for what is not there."""
    return Registry(options.plugins, private_chips(options.chips))
