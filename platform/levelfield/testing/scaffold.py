"""`vendor new`: creates a vendor's folder, or a package with one, to fill in."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2

from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError

NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEMPLATES = Path(__file__).with_name("templates")


def new_vendor(name: str, plugins: Path, registry: Registry) -> list[Path]:
    """Write vendors/<name>/ below `plugins` and return the files. Raises UsageError for an existing name or folder."""
    _check_name(name, registry)
    return write_folder("vendor new", plugins / "vendors" / name, _folder(name))


def new_package(name: str, parent: Path, registry: Registry) -> list[Path]:
    """Write a package levelfield-<name>/ in `parent`, for installation by pip, and return the files."""
    _check_name(name, registry)
    module = f"levelfield_{name.replace('-', '_')}"
    vendor = {f"{module}/vendors/{name}/{file}": text for file, text in _folder(name).items()}
    made = {
        "pyproject.toml": _render("pyproject.toml.j2", name),
        "README.md": _render("package.md.j2", name),
        ".gitignore": _render("gitignore.j2", name),
        f"{module}/__init__.py": f'"""The vendor {name} for Levelfield: data in vendors/{name}/."""\n',
        f"tests/test_{name.replace('-', '_')}.py": _render("test_vendor.py.j2", name),
    }
    return write_folder("vendor new", parent / f"levelfield-{name}", {**made, **vendor})


def _check_name(name: str, registry: Registry) -> None:
    check_form("vendor new", name)
    if name in registry.vendors:
        raise UsageError(f"vendor new: the vendor '{name}' exists: {registry.vendors[name]}; use another name")


def check_form(command: str, name: str) -> None:
    """Raise UsageError for a name that is no part of a file name, a module and a Dockerfile alike."""
    if not NAME.fullmatch(name) or len(name) > 40:
        raise UsageError(f"{command}: found the name '{name}', expected lower-case letters, digits and single hyphens")


def _folder(name: str) -> dict[str, str]:
    texts = {"vendor.yaml": "vendor.yaml.j2", "README.md": "README.md.j2", "recorded/README.md": "recorded.md.j2"}
    tuning = "# tuning\n\nOne file for each case that this vendor tunes: <case>.yaml, free fields only.\n"
    return {**{file: _render(template, name) for file, template in texts.items()}, "tuning/README.md": tuning}


def _render(template: str, name: str) -> str:
    return render(_TEMPLATES, template, name)


def render(folder: Path, template: str, name: str) -> str:
    """Return the text of a template of `folder`, for a plugin of this name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # configuration and code, not HTML
    )
    words = name.split("-")
    return environment.get_template(template).render(
        name=name,
        upper=name.upper().replace("-", "_"),
        title=" ".join(words).title(),
        module="levelfield_" + "_".join(words),
        distribution=f"levelfield-{name}",
        class_name="".join(word.capitalize() for word in words),
    )


def write_folder(command: str, folder: Path, files: dict[str, str]) -> list[Path]:
    """Write a new folder and return its files. Raises UsageError for an existing folder."""
    if folder.exists():
        raise UsageError(f"{command}: {folder} exists; remove it, or give another folder")
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{command}: {folder} cannot be written: {error.strerror}; give another folder") from None
    return [folder / name for name in files]
