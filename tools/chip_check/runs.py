"""Runs one entry of the plan: its command within a limit of time, its fault, and what is kept of it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chip_check.plan import Entry

ROOT = Path(__file__).resolve().parents[2]
FAULT_STEP = 5
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
FULL = "full"  # the fault of an entry whose device another program fills
LIMIT_FACTOR = 3  # an entry may take so many times its expected minutes, and
LIMIT_SECONDS = 120  # so much more
ON_A_PROCESSOR = 4  # times as long: its cores also do other work
# Takes the device's memory but LEFT_BYTES, until its input ends.
LEFT_BYTES = 4 * 2**30
FILL = """
import sys, torch
kind = torch.accelerator.current_accelerator()
free = torch.get_device_module(kind).mem_get_info()[0]
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device=kind)
print("filled", flush=True)
sys.stdin.read()
"""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


class Machine(NamedTuple):
    """Where entries run. python: for --python; empty where Levelfield makes environments."""

    vendor: str
    devices: int
    here: str
    python: str
    plugins: tuple[str, ...]
    output: Path


class Ended(NamedTuple):
    """A command that ended. code: None where it took too long."""

    code: int | None
    out: str
    err: str


def run_entry(entry: Entry, machine: Machine) -> dict[str, Any]:
    """Run the entry, keep what it wrote under its name, and return its record without digests."""
    began = time.monotonic()
    arguments = filled(entry, machine)
    with other_use(machine.python or sys.executable) if entry.fault == FULL else contextlib.nullcontext():
        ended = benchmark(machine, arguments, entry)
    names = () if entry.is_program else ("run_benchmarks.py",)
    record: dict[str, Any] = {"command": " ".join((*names, *arguments)), "exit": ended.code}
    result = only_result(ended.out) if entry.trains else None
    if entry.is_program:
        record["rows"] = rows_of(ended.out)
    record["word"] = word_of(entry, ended, result)
    keep(entry.name, machine.output, result)
    if result:
        record |= facts_of(result)
    elif ended.code != 0:
        record["said"] = last_line(ended.err)
    record["as_expected"], record["why_not"] = compare_with_plan(entry, record)
    return record | {"minutes": round((time.monotonic() - began) / 60, 2)}


@contextlib.contextmanager
def other_use(python: str) -> Iterator[None]:
    """Another program holds the device's memory. Raises ValueError where it cannot."""
    argv, pipe = [python, "-c", FILL, str(LEFT_BYTES)], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        if process.stdout.readline().strip() != "filled":
            raise ValueError(f"found no way to fill the device's memory: {last_line(process.stderr.read())}")
        yield
        process.stdin.close()


def filled(entry: Entry, machine: Machine) -> list[str]:
    if entry.is_program:
        return list(entry.arguments)
    values = {"vendor": machine.vendor, "count": str(machine.devices)}
    common = ["--json", "--no-store"] if entry.trains else []
    common += [part for folder in machine.plugins for part in ("--plugins", folder)]
    if machine.python and (entry.trains or entry.arguments[:2] == ("site", "preflight")):
        common += ["--python", machine.python]
    return [argument.format(**values) for argument in entry.arguments] + common


def benchmark(machine: Machine, arguments: list[str], entry: Entry | None = None) -> Ended:
    """Run run_benchmarks.py with this Python, or a program with the training's. It is interrupted with this process, or
    when it takes too long."""
    environment = {**os.environ, "LEVELFIELD_STORE": "none", "LEVELFIELD_RUNS": str(machine.output / "runs")}
    command = [sys.executable, str(ROOT / "run_benchmarks.py")]
    if entry and entry.is_program:
        command = [machine.python]
        environment.pop("PYTHONPATH", None)  # as for a training: the Python itself has what was carried
    limit = LIMIT_FACTOR * 60 * (entry.minutes if entry else 2) + LIMIT_SECONDS
    limit *= ON_A_PROCESSOR if machine.vendor == "cpu" else 1
    name = entry.name if entry else "question"
    with (machine.output / f"{name}.out").open("w+") as out, (machine.output / f"{name}.err").open("w+") as err:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=err,
            preexec_fn=_end_with_parent,
            start_new_session=True,
        )
        code = _watched(process, entry, machine.output / "runs", limit)
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read())


def _watched(process: subprocess.Popen[bytes], entry: Entry | None, runs: Path, limit: float) -> int | None:
    """Return the exit code; None where it took too long. The command never outlives this function."""
    try:
        if entry and entry.fault in SIGNALS:
            _break(process, runs, SIGNALS[entry.fault], limit)
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end_with_parent() -> None:
    """Have the kernel interrupt the command where this process is killed: no run holds devices behind it."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command that still runs, which then ends its ranks, and kill it after a minute."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _break(process: subprocess.Popen[bytes], runs: Path, number: int, limit: float) -> None:
    """Send the last rank this signal once it has trained FAULT_STEP steps."""
    deadline = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < deadline:
        for rank, (pid, job) in sorted(ranks_of(runs).items(), reverse=True)[:1]:
            events = job.parent / "events" / f"rank{rank}.jsonl"
            if events.exists() and f'"step":{FAULT_STEP},' in events.read_text():
                os.kill(pid, number)
                return
        time.sleep(0.02)


def ranks_of(runs: Path) -> dict[int, tuple[int, Path]]:
    """Return the process and the job's file of each rank that trains in this folder of runs."""
    ranks = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            pairs = (p.partition("=") for p in path.read_text(errors="replace").split("\0"))
        except OSError:
            continue
        variables = {key: value for key, _, value in pairs}
        job, rank = variables.get("LEVELFIELD_JOB", ""), variables.get("RANK", "")
        if job.startswith(f"{runs}/") and rank.isdigit():
            ranks[int(rank)] = (int(path.parent.name), Path(job))
    return ranks


def only_result(out: str) -> dict[str, Any] | None:
    try:
        content = json.loads(out)
    except ValueError:
        return None
    return content[0] if isinstance(content, list) and content else None


def rows_of(out: str) -> list[dict[str, Any]]:
    """Return the rows that a program printed; none where it was ended before."""
    try:
        rows = json.loads(out)
    except ValueError:
        return []
    return rows if isinstance(rows, list) else []


def word_of(entry: Entry, ended: Ended, result: dict[str, Any] | None) -> str:
    """Return the result's word, `exit N` where there is none, or `took too long`."""
    if ended.code is None:
        return "took too long"
    return str(result["status"]["word"]) if result else f"exit {ended.code}"


def keep(name: str, output: Path, result: dict[str, Any] | None) -> None:
    """Copy the result and the report of a training to NAME.result.json and NAME.report.md."""
    if result is None:
        return
    for kind, suffix in (("result", "json"), ("report", "md")):
        source = output / "runs" / result["run_id"] / f"{kind}.{suffix}"
        if source.exists():
            shutil.copy2(source, output / f"{name}.{kind}.{suffix}")


TAKEN = (
    *("run_id", "case", "scale", "framework", "framework_version", "vendor", "chip", "nodes", "devices", "precision"),
    *("layout", "micro_batch", "virtual_pipeline", "recompute", "compile", "utilisation"),
)


def facts_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the summary needs of a result."""
    facts = {key: result.get(key) for key in TAKEN}
    facts["status"] = result["status"]
    facts["verdict"] = (result.get("alignment") or {}).get("verdict")
    facts["verdict_reason"] = (result.get("alignment") or {}).get("reason")
    facts["tokens_per_second_per_device"] = (result.get("throughput") or {}).get("tokens_per_second_per_device")
    memory = result.get("memory") or {}
    facts["planned_bytes"] = memory.get("expected_bytes")
    for key in ("allocated_peak", "reserved_peak", "device_used_peak"):
        facts[f"{key}_bytes"] = (memory.get(key) or {}).get("value")
    facts["used_before"] = [d.get("memory_used") for d in (result.get("other_use") or {}).get("devices", ())]
    return facts


def compare_with_plan(entry: Entry, record: dict[str, Any]) -> tuple[bool, str | None]:
    """Return whether the entry ended as the plan expects, and else what was found and expected."""
    if record["word"] not in entry.expects:
        reasons = "; ".join((record.get("status") or {}).get("reasons", ())) or record.get("said") or ""
        because = f": {reasons}" if reasons else ""
        return False, f"found {record['word']}, expected {' or '.join(entry.expects)}{because}"
    if entry.verdicts and record.get("verdict") not in entry.verdicts:
        return False, f"found alignment {record.get('verdict')}, expected {' or '.join(entry.verdicts)}"
    return True, None


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was said")
