"""Wheels of small packages, as pip installs them without any index, and a source that is built against one."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder: Path) -> Path:
    """A package of one module, as pip installs it without any index."""
    return folder / write(folder, "acme", "VALUE = 42\n")


def write(folder: Path, name: str, source: str, version: str = "1.0") -> str:
    """Write the wheel of a package with one module, and return the file's name."""
    files = {
        f"{name}.py": source,
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": WHEEL,
    }
    record = "".join(f"{file},sha256={_digest(text)},{len(text)}\n" for file, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{name}-{version}.dist-info/RECORD": record}.items():
            archive.writestr(file, text)
    return f"{name}-{version}-py3-none-any.whl"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


BACKEND = """\
import acme, os, pathlib, sys
sys.path.insert(0, os.path.dirname(__file__))
from planted_wheel import write

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    seen = {name: os.environ.get(name, "") for name in ("ENGINE_HOME", "CPATH", "PATH")}
    source = f"AGAINST = {acme.VALUE}\\nSEEN = {seen!r}\\n"
    return write(pathlib.Path(wheel_directory), "engine", source)
"""


def built_against(folder: Path) -> Path:
    """A source distribution whose build imports the package of `wheel`, as many for accelerators import torch.

    Its module holds what the build saw. Its build backend is in it, so that pip needs nothing else.
    """
    writer = Path(__file__).read_text().partition("BACKEND = ")[0]
    texts = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND,
        "planted_wheel.py": writer,
    }
    path = folder / "engine-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"engine-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path
