"""The code that the figures of a recorded training rest on, as a digest that changes with it."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.node.code_digest import MANIFEST_FILE, shared_folders, source_files
from levelfield.specs.implementation import ImplementationFile

# Decorators that do not read the annotations of a function. Others may: Triton compiles by them.
_NEUTRAL_DECORATORS = {"staticmethod", "classmethod", "property", "contextmanager", "cache", "no_grad"}


def training_code_digest(manifest: ImplementationFile, folder: Path, kind: str, *further_folders: Path) -> str:
    """Return the digest of what the figures of a training on this kind of device follow from.

    It covers the framework's folder, the folders beside it that its sources name, the worker and `further_folders`,
    without measured files. It also covers the parts of the manifest that a training has: the start of a process, its
    variables, its way to the device, and the pins and the Python of the kind. Titles, refusals, words about where pins
    ran, other kinds and other versions are no part of it; nor are the comments, docstrings and types of Python's code.
    """
    requirements, reach = manifest.requirements.get(kind), manifest.reaches.get(kind)
    parts = {
        "version": manifest.version,
        "argv": manifest.launch.argv,
        "environment": manifest.environment(kind),
        "reach": None if reach is None else reach.access.model_dump(mode="json"),
        "packages": None if requirements is None else requirements.packages,
        "python": None if requirements is None else requirements.python,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    worker = checkout() / "platform" / "levelfield" / "worker"
    for root in (folder, *shared_folders(folder), worker, *further_folders):
        for path in (path for path in source_files(root) if path.name != MANIFEST_FILE):
            content = path.read_bytes()
            content = _executed_syntax(content) if path.suffix == ".py" else content
            name = f"{root.name}/{path.relative_to(root).as_posix()}\0{len(content)}\0"
            digest.update(name.encode(errors="surrogateescape") + content)
    return f"sha256:{digest.hexdigest()}"


@lru_cache(maxsize=1024)
def _executed_syntax(source: bytes) -> bytes:
    """Return what Python runs of a module: its syntax tree without comments, docstrings and types.

    Types are the annotations of functions and of their variables, and imports for a checker; those of a class are its
    fields. The text is the same on each Python. A file that this Python cannot parse is returned as it is.
    """
    try:
        return repr(_comparable(ast.parse(source), is_local=False)).encode(errors="surrogateescape")
    except (SyntaxError, ValueError, RecursionError):
        return source


def _comparable(value: object, is_local: bool) -> object:
    """Return a part of a syntax tree as tuples that are equal on each Python. Empty fields are left out, as a newer
    Python has more of them.

    is_local: the part is in a function, and not in a class in it.
    """
    if isinstance(value, list):
        return [_comparable(item, is_local) for item in value if not _is_for_checkers(item, is_local)]
    if not isinstance(value, ast.AST):
        return value
    if isinstance(value, ast.AnnAssign) and value.value is not None and is_local:
        value = ast.Assign([value.target], value.value)
    if isinstance(value, ast.Module | ast.ClassDef | ast.FunctionDef):
        is_local = isinstance(value, ast.FunctionDef)
        if ast.get_docstring(value, clean=False) is not None:
            del value.body[0]
    if isinstance(value, ast.FunctionDef):
        decorators = {ast.unparse(n).partition("(")[0].rpartition(".")[2] for n in value.decorator_list}
        if decorators <= _NEUTRAL_DECORATORS:  # none of them reads the annotations of its function
            value.returns = None
            for argument in ast.walk(value.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
    fields = ((name, field) for name, field in ast.iter_fields(value) if field not in (None, []))
    return type(value).__name__, *((name, _comparable(field, is_local)) for name, field in fields)


def _is_for_checkers(statement: object, is_local: bool) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module in ("__future__", "typing")
    if isinstance(statement, ast.If):
        return not statement.orelse and ast.unparse(statement.test) == "TYPE_CHECKING"
    return is_local and isinstance(statement, ast.AnnAssign) and statement.value is None


def recorded_runs_path(manifest: ImplementationFile, folder: Path) -> Path:
    """Return the file of the recorded runs of this version: tested.json, or tested-VERSION.json of a further one."""
    return folder / (f"tested-{manifest.version}.json" if manifest.is_further else "tested.json")
