"""The code at hand as recorded trainings rest on it."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.node.code_digest import MANIFEST, shared_folders, sources
from levelfield.specs.implementation import ImplementationFile

# Decorators that do not read the annotations of a function. Others may: Triton compiles by them.
_BLIND_DECORATORS = {"staticmethod", "classmethod", "property", "contextmanager", "cache", "no_grad"}


def training_code(file: ImplementationFile, folder: Path, kind: str, *further: Path) -> str:
    """Return the digest of what the figures of a training on this kind of device follow from.

    It is the framework's folder, the folders beside it that its sources name, the worker and the folders of `further`,
    without measured files, and the parts of the manifest that a training has: the start of a process, its variables,
    its way to the device, and the pins and the Python of the kind. Titles, refusals, words about where pins ran, other
    kinds and other versions are no part of it; nor are the comments, docstrings and types of Python's code.
    """
    needs, reach = file.requirements.get(kind), file.reaches.get(kind)
    parts = {
        "version": file.version,
        "argv": file.launch.argv,
        "environment": file.environment(kind),
        "reach": None if reach is None else reach.access.model_dump(mode="json"),
        "packages": None if needs is None else needs.packages,
        "python": None if needs is None else needs.python,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    worker = checkout() / "platform" / "levelfield" / "worker"
    for root in (folder, *shared_folders(folder), worker, *further):
        for path in (path for path in sources(root) if path.name != MANIFEST):
            content = path.read_bytes()
            content = _executed(content) if path.suffix == ".py" else content
            name = f"{root.name}/{path.relative_to(root).as_posix()}\0{len(content)}\0"
            digest.update(name.encode(errors="surrogateescape") + content)
    return f"sha256:{digest.hexdigest()}"


@lru_cache(maxsize=1024)
def _executed(source: bytes) -> bytes:
    """Return what Python runs of a module: its syntax tree without comments, docstrings and types.

    Types are the annotations of functions and of their variables, and imports for a checker; those of a class are its
    fields. The text is the same on each Python. A file that this Python cannot parse is returned as it is.
    """
    try:
        return repr(_bare(ast.parse(source), is_local=False)).encode(errors="surrogateescape")
    except (SyntaxError, ValueError, RecursionError):
        return source


def _bare(value: object, is_local: bool) -> object:
    """Return a part of a syntax tree as tuples, without empty fields: a newer Python has more of them.

    is_local: the part is in a function, and not in a class in it.
    """
    if isinstance(value, list):
        return [_bare(item, is_local) for item in value if not _is_for_checkers(item, is_local)]
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
        if decorators <= _BLIND_DECORATORS:  # none of them reads the annotations of its function
            value.returns = None
            for argument in ast.walk(value.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
    fields = ((name, field) for name, field in ast.iter_fields(value) if field not in (None, []))
    return type(value).__name__, *((name, _bare(field, is_local)) for name, field in fields)


def _is_for_checkers(statement: object, is_local: bool) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module in ("__future__", "typing")
    if isinstance(statement, ast.If):
        return not statement.orelse and ast.unparse(statement.test) == "TYPE_CHECKING"
    return is_local and isinstance(statement, ast.AnnAssign) and statement.value is None


def runs_path(file: ImplementationFile, folder: Path) -> Path:
    """Return the file of the recorded runs of this version: tested.json, or tested-VERSION.json of a further one."""
    return folder / (f"tested-{file.version}.json" if file.is_further else "tested.json")
