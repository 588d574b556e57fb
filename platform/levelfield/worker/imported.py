"""The files that a training process imported, besides Python's own and those of installed packages."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

VARIABLE = "LEVELFIELD_IMPORTED"


def report_imported(rank: int) -> None:
    """Write the files that this process imported to rankN.imported in the folder that LEVELFIELD_IMPORTED names.

    Recorded trainings rest on these files. Without the variable nothing is written. A report that cannot be written
    fails no training: who reads it takes all files that there are.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    try:
        (Path(folder) / f"rank{rank}.imported").write_text(json.dumps(imported_files()), encoding="utf-8")
    except OSError as error:
        print(f"levelfield: {VARIABLE}={folder}: the imported files cannot be written: {error}", file=sys.stderr)


def imported_files() -> list[str]:
    """Return the real paths of the files of all modules that came from no installed package."""
    installed = {os.path.realpath(path) + os.sep for path in sysconfig.get_paths().values()}
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    found = {os.path.realpath(name) for name in named if isinstance(name, str) and Path(name).is_file()}
    return sorted(path for path in found if not path.startswith(tuple(installed)))
