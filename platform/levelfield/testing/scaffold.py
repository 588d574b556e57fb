"""`vendor new` and `framework new`: the folder of a plugin, or a package with one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import jinja2

from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError

Kind = Literal["vendor", "framework"]
NAME_PATTERN = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FOLDERS: dict[Kind, str] = {"vendor": "vendors", "framework": "models"}
_HERE = Path(__file__).parent
_TEMPLATES: dict[Kind, Path] = {"vendor": _HERE / "templates/vendor", "framework": _HERE / "framework_kit/template"}
_PACKAGE = _HERE / "templates/package"


def create_plugin_folder(kind: Kind, name: str, plugins_folder: Path, registry: Registry) -> Path:
    """Write vendors/<name>/ or models/<name>/ below `plugins_folder` and return it.

    Raises UsageError for a name that exists, or that is no part of a file name, a module and a Dockerfile alike, and
    for an existing folder.
    """
    return _write_files(
        kind, name, registry, plugins_folder / _FOLDERS[kind] / name, _render_templates(_TEMPLATES[kind], kind, name)
    )


def create_package(kind: Kind, name: str, parent: Path, registry: Registry) -> Path:
    """Write a package levelfield-<name>/ in `parent`, to install by pip, and return it.

    Raises UsageError as `create_plugin_folder` does.
    """
    files = _render_templates(_PACKAGE, kind, name)
    module = name.replace("-", "_")
    files[f"tests/test_{module}.py"] = files.pop("test_plugin.py")
    if kind == "vendor":
        docstring = f'"""The vendor {name} for Levelfield: data in vendors/{name}/."""\n'
    else:
        docstring = f'"""The framework {name} for Levelfield, in models/{name}/."""\n'
        del files["README.md"]  # the folder of the framework has one
    files[f"levelfield_{module}/__init__.py"] = docstring
    plugin_path = f"levelfield_{module}/{_FOLDERS[kind]}/{name}"
    files |= {f"{plugin_path}/{file}": text for file, text in _render_templates(_TEMPLATES[kind], kind, name).items()}
    return _write_files(kind, name, registry, parent / f"levelfield-{name}", files)


def _render_templates(folder: Path, kind: Kind, name: str) -> dict[str, str]:
    """Return the texts of a folder's files, by path: those with the ending .j2 hold the name, the others are copied."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # configuration and code, not HTML
    )
    words = name.split("-")
    values = {
        "kind": kind,
        "folder": _FOLDERS[kind],
        "suite": "conformance" if kind == "vendor" else "framework",
        "name": name,
        "upper": name.upper().replace("-", "_"),
        "title": " ".join(words).title(),
        "module": "levelfield_" + "_".join(words),
        "distribution": f"levelfield-{name}",
        "class_name": "".join(word.capitalize() for word in words),
    }
    files = {}
    for path in sorted(folder.rglob("*")):
        relative_path = path.relative_to(folder).as_posix()
        if path.suffix == ".j2":
            files[relative_path.removesuffix(".j2")] = environment.get_template(relative_path).render(values)
        elif path.is_file() and "__pycache__" not in path.parts:
            files[relative_path] = path.read_text(encoding="utf-8")
    return files


def _write_files(kind: Kind, name: str, registry: Registry, folder: Path, files: dict[str, str]) -> Path:
    if not NAME_PATTERN.fullmatch(name) or len(name) > 40:
        raise UsageError(f"{kind} new: found the name '{name}', expected lower-case letters, digits and single hyphens")
    names = registry.vendors if kind == "vendor" else registry.frameworks
    if name in names:
        raise UsageError(f"{kind} new: the {kind} '{name}' exists: {names[name]}; use another name")
    if folder.exists():
        raise UsageError(f"{kind} new: {folder} exists; remove it, or give another folder")
    try:
        for file, text in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{kind} new: {folder} cannot be written: {error.strerror}; give another folder") from None
    return folder
