"""`framework new`: a framework's folder that trains, or a package with one."""

from __future__ import annotations

from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.testing.scaffold import check_form, render, write_folder

TEMPLATE = Path(__file__).with_name("template")
PACKAGE = Path(__file__).with_name("package")
COMMAND = "framework new"


def new_framework(name: str, plugins: Path, registry: Registry) -> list[Path]:
    """Write models/<name>/ below `plugins` and return the files. Raises UsageError for an existing name or folder."""
    _check_name(name, registry)
    return write_folder(COMMAND, plugins / "models" / name, _folder(name))


def new_framework_package(name: str, parent: Path, registry: Registry) -> list[Path]:
    """Write a package levelfield-<name>/ in `parent`, for installation by pip, and return the files."""
    _check_name(name, registry)
    module = f"levelfield_{name.replace('-', '_')}"
    files = {f"{module}/models/{name}/{file}": text for file, text in _folder(name).items()}
    made = {
        "pyproject.toml": render(PACKAGE, "pyproject.toml.j2", name),
        ".gitignore": render(PACKAGE, "gitignore.j2", name),
        f"{module}/__init__.py": f'"""The framework {name} for Levelfield, in models/{name}/."""\n',
        f"tests/test_{name.replace('-', '_')}.py": render(PACKAGE, "test_framework.py.j2", name),
    }
    return write_folder(COMMAND, parent / f"levelfield-{name}", {**made, **files})


def _check_name(name: str, registry: Registry) -> None:
    check_form(COMMAND, name)
    if name in registry.frameworks:
        raise UsageError(f"{COMMAND}: the framework '{name}' exists: {registry.frameworks[name]}; use another name")


def _folder(name: str) -> dict[str, str]:
    """Return the template's files: those with the ending .j2 hold the name, the others are the same for all."""
    files = {}
    for path in sorted(TEMPLATE.iterdir()):
        if path.suffix == ".j2":
            files[path.stem] = render(TEMPLATE, path.name, name)
        elif path.suffix == ".py":
            files[path.name] = path.read_text(encoding="utf-8")
    return files
