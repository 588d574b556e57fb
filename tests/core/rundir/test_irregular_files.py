"""A pipe, a socket, a device, a folder or 1 TB in the place of a file of a run: no reader waits, or reads it all."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.run.runner import finish
from levelfield.rundir import directory
from levelfield.specs.paths import RunPaths
from plans import PLUGINS

LONGEST = 10  # seconds of a command
ALWAYS = ("plan.json", "job.json", "outcome.json", "telemetry.jsonl", "events/rank0.jsonl")
FILES = (
    *ALWAYS, "status.json", "result.json", "report.md", "request.json", "provenance.json", "reference.json",
    "certificate.json", "preflight.json", "logs/rank0.log", "nodes/engine.json", "nodes/node0.facts.json",
    "nodes/node0.software.json", "telemetry/node0.jsonl", "telemetry/node0.raw.jsonl", "events/rank7.jsonl",
)  # fmt: skip
KINDS: dict[str, Callable[[str], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": lambda path: bound(path),
    "a device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),  # zeros without an end
    "a folder": os.mkdir,
    "1 TB": lambda path: sparse(path),
}
TOO_LARGE = 2**40  # bytes; a file system that has blocks keeps none of them


def bound(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(Path(path).parent)  # the name of a socket has 108 bytes at most
        try:
            listener.bind(Path(path).name)
        finally:
            os.chdir(before)


def sparse(path: str) -> None:
    with Path(path).open("wb") as file:
        file.truncate(TOO_LARGE)


def put(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    try:
        KINDS[kind](str(path))
    except PermissionError:
        pytest.skip("a device can be made by root alone")


def expected(kind: str) -> str:
    return (
        f"found {TOO_LARGE:,} bytes, expected at most" if kind == "1 TB" else f"found {kind}, expected a regular file"
    )


@contextmanager
def limited(what: str) -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise AssertionError(f"{what}: it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Each file as one kind, by turns, and a file that every run has as each kind; the others are thorough.
FIRST = {(file, tuple(KINDS)[number % len(KINDS)]) for number, file in enumerate(FILES)}
FIRST |= {("events/rank0.jsonl", kind) for kind in KINDS}


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        pytest.param(file, kind, marks=[] if (file, kind) in FIRST else [pytest.mark.thorough])
        for file in FILES
        for kind in KINDS
    ],
)
def test_no_reader_of_a_run_waits(
    run: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str, kind: str
) -> None:
    monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
    finish(run)
    other = Path(shutil.copytree(run.root, run.root.with_name("20260102T030406Z_tiny_fake_fake_123456")))
    name, runs = str(run.root), ["--runs", str(run.root.parent)]
    more = ["--plugins", str(PLUGINS)]
    for words in (
        ["show", "runs", *runs],
        ["report", name, *runs],
        ["report", name, "--format", "json", *runs],
        ["evidence", "collect", name, "--check"],
        ["evidence", "collect", name],
        ["compare", name, str(other)],
        ["evidence", "bundle", name, "--output", str(other / "b.zip"), *more],
    ):
        put(run.root / file, kind)
        with limited(f"{words[0]} with {kind} as {file}"):
            code = main(words)
        assert code in (0, 2, 3, 4), (words, capsys.readouterr().err)  # 5 is a fault of the platform
        capsys.readouterr()
    put(run.root / file, kind)
    with limited("a new run"):
        directory.correct_stale_statuses(run.root.parent)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_found_is_said(run: RunPaths, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    put(run.telemetry, kind)
    assert main(["report", str(run.root)]) == 0
    assert f"telemetry.jsonl: {expected(kind)}" in " ".join(capsys.readouterr().out.split())
    put(run.plan, kind)
    assert main(["report", run.root.name, "--runs", str(run.root.parent)]) == 2
    message = capsys.readouterr().err
    assert "plan.json" in message and expected(kind).partition(", ")[0] in message


def test_a_run_begins_beside_a_pipe(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    put(run.status, "a named pipe")
    words = ["--case", "tiny:fake", "--plugins", str(PLUGINS), "--python", sys.executable, "--quiet"]
    with limited("a new run"):
        assert main([*words, "--runs", str(run.root.parent)]) == 0
