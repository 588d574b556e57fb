"""Has a rank report, at its end, the files that it imported besides Python's own and those of installed packages.

Python imports a module of this name at its start from a folder of PYTHONPATH. So no code of a training knows of the
report, and none that recorded trainings rest on changes with it.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

VARIABLE = "LEVELFIELD_IMPORTED"


def report_at_end(folder: str, rank: str) -> None:
    """Have this process write rankN.imported into `folder` when it ends well, as the worker ends it: by os._exit(0).

    A report that cannot be written fails no training: who reads it takes all files that there are. Processes that this
    one starts or forks write none.
    """
    own, leave = os.getpid(), os._exit

    def report_and_leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == own:
            try:
                (Path(folder) / f"rank{rank}.imported").write_text(json.dumps(imported_files()), encoding="utf-8")
            except OSError as error:
                print(f"levelfield: {VARIABLE}={folder}: imported files cannot be written: {error}", file=sys.stderr)
        leave(status)

    os._exit = report_and_leave


def imported_files() -> list[str]:
    """Return the real paths of the files of all modules that neither came from an installed package nor were written by
    torch's compiler, which names its folder in the environment."""
    folders = [*sysconfig.get_paths().values(), *filter(None, [os.environ.get("TORCHINDUCTOR_CACHE_DIR")])]
    installed = tuple(os.path.realpath(path) + os.sep for path in folders)
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    found = {os.path.realpath(name) for name in named if isinstance(name, str) and Path(name).is_file()}
    return sorted(path for path in found if not path.startswith(installed) and path != os.path.realpath(__file__))


if VARIABLE in os.environ:
    report_at_end(os.environ.pop(VARIABLE), os.environ["RANK"])
