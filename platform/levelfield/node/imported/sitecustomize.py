"""Has a rank report what it imported. Python imports a module of this name at its start from a folder of PYTHONPATH.

So no code of a training knows of the report. A module of this name that the environment has is imported after it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

VARIABLE = "LEVELFIELD_IMPORTS_FILE"


if VARIABLE in os.environ:
    from levelfield.node.code_digest import report_imports_at_end

    report_imports_at_end(os.environ.pop(VARIABLE))
# the sitecustomize that Python would have imported without this folder, if there is one
folder = Path(__file__).resolve().parent
sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
spec = PathFinder.find_spec("sitecustomize", sys.path)
if spec is not None and spec.loader is not None:
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
