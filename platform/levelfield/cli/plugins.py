"""The registry for the options of a command."""

from __future__ import annotations

import argparse

from levelfield.catalog.registry import Registry, private_chips


def registry_of(options: argparse.Namespace) -> Registry:
    """Return the registry with the plugins of --plugins and the chips of --chips or of the user's file.

    Raises UsageError for a folder or file that does not exist.
    """
    return Registry(options.plugins, private_chips(options.chips), options.case_file)
