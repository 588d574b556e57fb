"""The options of commands that start trainings in containers, and the base image that the user names."""

from __future__ import annotations

import argparse
import os

BASE_IMAGE = "base of the image (default: LEVELFIELD_BASE_IMAGE, else the vendor's image)"

BASE_HAS_FRAMEWORK = "the base image brings the framework: install nothing into it"


def container_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        choices=("process", "docker"),
        default="process",
        help="process: a Python environment; docker: containers, and each build makes its own image",
    )
    parser.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)


def base_image(options: argparse.Namespace) -> str | None:
    """Return the image of --base-image, else for containers that of LEVELFIELD_BASE_IMAGE; None for the vendor's."""
    named: str | None = options.base_image
    return named or (os.environ.get("LEVELFIELD_BASE_IMAGE") if options.runtime == "docker" else None)
