"""The Python that trains: on a machine without network one that has torch, with packages that were carried there."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from pathlib import Path

ASK = """
import importlib.util as u, json, sys
def has(name):
    try:
        return u.find_spec(name) is not None
    except Exception:  # its package is imported for the question, and some look for libraries then
        return False
from importlib.metadata import version, PackageNotFoundError
def release(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
found = [{name: ask(name) for name in names.split()} for ask, names in zip((has, release), sys.argv[1:])]
print(json.dumps(dict(zip(("has", "releases"), found))))
"""
PACKAGES = ("torch", "jax", "numpy", "megatron-core", "deepspeed", "transformer-engine", "torchao", "flash-attn")


def given_python(output: Path) -> str:
    """Return the Python for --python, without bootstrap: this one, or one that also has what PYTHONPATH names.

    Trainings are started without PYTHONPATH. So an environment on top of this Python names those folders in a file.
    Empty where Levelfield makes its environments. Raises ValueError where none can be made.
    """
    if os.environ.get("LEVELFIELD_NO_BOOTSTRAP") != "1":
        return ""
    carried = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    carried = [p for p in carried if not (Path(p) / "levelfield").is_dir()]
    return str(_on_top(output / "python", carried)) if carried else sys.executable


def _on_top(folder: Path, carried: list[str]) -> Path:
    """Make the environment: first the carried folders, then what this Python has."""
    argv = [sys.executable, "-m", "venv", "--clear", "--without-pip", "--system-site-packages", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason was printed"]
        raise ValueError(
            f"found no way to make an environment on {sys.executable}: {reason[0]}; name a Python by --python"
        )
    packages = next((folder / "lib").glob("python*/site-packages"))
    lines = [*carried, *(p for p in site.getsitepackages() if Path(p).is_dir())]
    (packages / "carried.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def found_in(python: str, modules: set[str]) -> tuple[dict[str, bool], dict[str, str | None]]:
    """Return which modules this Python can import, and the releases of frameworks' packages. Raises ValueError."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    argv = [python, "-c", ASK, " ".join(sorted(modules)), " ".join(PACKAGES)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300)
        content = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"--python {python}: {error}; expected a Python that runs") from None
    return content["has"], content["releases"]


def sees_cuda(python: str) -> bool:
    """Return whether the torch of this Python has a device that it calls cuda, which programs of benchmarks/ use."""
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return bool(python) and not subprocess.run([python, "-c", ask], capture_output=True, env=environment).returncode
