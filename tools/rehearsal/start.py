"""Start the ranks of a rehearsal in the CUDA environment, and read what they leave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from rehearsal.launches import launches_by_part
from rehearsal.plans import CHECKOUT, RehearsalError, chip_of, world_size
from standin.build import Standin

REMOVED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
INSIDE = Path(__file__).resolve().parent / "inside"
SHARED_MEMORY = Path("/dev/shm")
# Of the numbers of a mixture, which are real (inside/counts.py). What moves takes memory of the host: a mixture's
# weights are small and many, and should not.
COUNTS_BYTES = 2**21


def rehearse(
    entry: dict[str, Any],
    python: Path,
    standin: Standin,
    ranks: list[int],
    steps: int,
    timeout: int,
    older: Path | None = None,
    by_part: bool = False,
) -> list[dict[str, Any]]:
    """Run these ranks: all of the world with messages delivered, or some, each alone. Returns a report of each.

    older: another checkout whose training code runs. by_part: each rank records one step more, and its report has
    `launches` by part.
    """
    world = world_size(entry["job"])
    whole = len(ranks) == world > 1
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        space = open_space() if whole else None
        try:
            spec = specification(entry, Path(folder), ranks, steps, whole)
            if older is not None:
                spec["checkout"] = str(older)
                (Path(folder) / "spec.json").write_text(json.dumps(spec))
            environment = variables(entry, standin, space, timeout) | compiler_folders(Path(folder))
            run_parent(INSIDE / parent_of(entry["job"], by_part), spec, python, environment)
        finally:
            if space:
                shutil.rmtree(space, ignore_errors=True)
        reports = [read_report(Path(folder), rank) for rank in ranks]
        if by_part:
            for report in reports:
                report["launches"] = launches_by_part(Path(folder), report["rank"])
        return reports


def open_space() -> str:
    """The folder through which the ranks exchange messages: in memory where the system has such a place."""
    return tempfile.mkdtemp(prefix="standin-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)


def specification(entry: dict[str, Any], folder: Path, ranks: list[int], steps: int, whole: bool) -> dict[str, Any]:
    (folder / "job.json").write_text(json.dumps(entry["job"]))
    hardware = entry["plan"]["hardware"]
    spec = {
        "checkout": str(CHECKOUT),
        "framework": entry["plan"]["implementation"]["framework"],
        "folder": str(folder),
        "ranks": ranks,
        "world": world_size(entry["job"]),
        "devices": hardware["devices_per_node"],
        "steps": steps,
        "whole": whole,
        "port": free_port(),
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    return spec


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(entry: dict[str, Any], standin: Standin, space: str | None, timeout: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in REMOVED}
    devices = entry["plan"]["hardware"]["devices_per_node"]
    framework_environment = entry["plan"]["implementation"].get("environment") or {}
    tuned = entry["plan"]["tuning"].get("environment") or {}
    more = {"LEVELFIELD_STANDIN_SPACE": space} if space else {}
    limit = {"LEVELFIELD_STANDIN_TIMEOUT_SECONDS": str(timeout)}
    if entry["job"]["model"].get("experts"):
        limit["LEVELFIELD_STANDIN_COPY_BYTES"] = str(COUNTS_BYTES)
    return {
        **inherited,
        **framework_environment,
        **tuned,
        **standin.environment(chip_of(entry), devices),
        **more,
        **limit,
    }


def parent_of(job: dict[str, Any], by_part: bool) -> str:
    """The program of INSIDE that starts the ranks."""
    return "parts.py" if by_part else "compiled.py" if job["tuning"]["compile"] else "parent.py"


def compiler_folders(folder: Path) -> dict[str, str]:
    """Caches of this rehearsal alone: kernels that were timed on a pretended device must never serve a real one."""
    return {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}


def run_parent(parent: Path, spec: dict[str, Any], python: Path, environment: dict[str, str]) -> None:
    """Run all ranks to their end. They are a group of processes of their own, which an interrupt here ends at once."""
    argv = [str(python), str(parent), str(Path(spec["folder"]) / "spec.json")]
    process = subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what a rank that ended has left
        process.wait()
    if process.returncode:
        raise RehearsalError(f"the ranks did not start: {errors.strip()[-2000:]}")


def read_report(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank left; where it was ended, its last lines."""
    path, printed = folder / f"rank{rank}.json", folder / f"rank{rank}.txt"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rank": rank, "steps": []}
    code = folder / f"rank{rank}.code"
    report["exit_code"] = int(code.read_text()) if code.exists() else None
    if report["exit_code"] != 0:
        report["printed"] = printed.read_text(errors="replace")[-3000:] if printed.exists() else ""
    return report
