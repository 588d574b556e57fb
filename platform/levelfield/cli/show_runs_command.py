"""`show runs`: list the runs of a folder, each with its phase and its status"""

from __future__ import annotations

import argparse

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option, runs_folder
from levelfield.report.sheets import entry_lines
from levelfield.rundir.run_state import state_text
from levelfield.specs.paths import RunPaths
from levelfield.specs.readable_json import json_text

_HELP = """\
List the runs of a folder: what each does now, or how it ended.

examples:
  run_benchmarks.py show runs
  run_benchmarks.py show runs --runs DIR --json
"""


def execute(options: argparse.Namespace) -> int:
    """Print a line for each run. Return 0."""
    folders = [path.parent for path in sorted(runs_folder(options).glob("*/status.json"))]
    rows = [{"name": folder.name, "says": state_text(RunPaths(folder))} for folder in folders]
    print(json_text({"runs": rows}) if options.json else "\n".join(["runs", *entry_lines(rows)]))
    return 0


COMMANDS = {"show runs": Command(_HELP, add_json_option, execute)}
