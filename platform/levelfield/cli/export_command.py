"""`export`: writes a case's initial weights for other tools."""

from __future__ import annotations

import argparse

from levelfield.catalog.registry import Registry
from levelfield.publish.export import export_hf


def execute(options: argparse.Namespace) -> int:
    work = Registry(options.plugins, case_files=options.case_file).case(options.case).work(options.scale)
    for path in export_hf(work, options.output, options.force):
        print(path)
    return 0
