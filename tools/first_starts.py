#!/usr/bin/env python3
"""First starts: a table of surroundings and expected outcomes, as root and as an ordinary user. `make test` runs it.

.venvs/dev/bin/python tools/first_starts.py [--all] [--only WORD] [--code CHECKOUT]

Each row is a start of run_benchmarks.py in a folder of its own. It is right when the exit code, the sentence and the
changed files are the expected ones. A traceback, exit code 5, ten seconds, or a file elsewhere makes it wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starts.rows import LOCK, Row, rows
from starts.stage import Stage, Started

AT_ONCE = 3
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    options = _options()
    _let_starts_hear_signals()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="first starts ") as folder:
        Path(folder).chmod(0o755)
        stage = Stage(Path(folder), options.code)
        table = [row for row in rows(stage, options.all) if options.only in row.name]
        before = _top()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            wrong = [line for line in pool.map(lambda row: _finding(stage, row), table) if line]
        wrong += [f"outside: {name} was made" for name in sorted(_top() - before)]
    for line in wrong:
        print(line)
    counted = Counter(row.user if stage.ordinary else "this user" for row in table)
    users = ", ".join(f"{number} as {name}" for name, number in counted.items())
    print(f"first starts: {len(table)} rows ({users}), {len(wrong)} wrong, {time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every combination, and real environments")
    parser.add_argument("--only", default="", help="rows with this word in their name")
    parser.add_argument("--code", type=Path, default=ROOT, help="another checkout, whose starts are judged")
    return parser.parse_args()


def _let_starts_hear_signals() -> None:
    """nohup, or a shell's background job, has signals ignored by all that is started. A handler is not inherited."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


def _top() -> set[Path]:
    """What the root and its cache hold: an empty HOME would lead there."""
    return {*Path("/").iterdir(), *Path("/.cache").glob("*"), *Path("/.config").glob("*")}


def _finding(stage: Stage, row: Row) -> str | None:
    """What is wrong with a row, in one line; None when nothing is."""
    box = stage.box(row)
    before = _snapshot(box.root)
    started = stage.start(box, row)
    faults = [*_output_faults(row, started), *_changed(row, before, _snapshot(box.root)), *row.check(box)]
    stage.remove(box)
    if not faults:
        return None
    last = (started.stderr.strip().splitlines() or ["(nothing on stderr)"])[-1]
    return f"wrong: {row.name} [{row.user}]: {'; '.join(faults)} | exit {started.code}: {last[:200]}"


def _output_faults(row: Row, started: Started) -> list[str]:
    faults = []
    if started.code != row.code:
        faults.append(f"exit {started.code}, expected {row.code}")
    if started.seconds > row.limit_seconds:
        faults.append(f"{started.seconds:.0f} s")
    if "Traceback" in started.stderr or "Fatal Python" in started.stderr:
        faults.append("a traceback")
    if row.hears and row.code == 2 and "levelfield: error: " not in started.stderr:
        faults.append("no sentence")
    if row.hears and row.says not in started.stderr:
        faults.append(f"does not say {row.says!r}")
    if row.hears and row.code == 0 and not started.stdout.startswith("levelfield "):
        faults.append("nothing on stdout")
    return faults


def _snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path below the root with its kind, size, time and target; a folder's own time does not count."""
    snapshot: dict[str, tuple[object, ...]] = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder) / name
            at = path.lstat()
            is_folder, target = stat.S_ISDIR(at.st_mode), path.readlink() if path.is_symlink() else ""
            times = () if is_folder else (at.st_size, at.st_mtime_ns, at.st_ino)
            snapshot[str(path.relative_to(root))] = (stat.S_IFMT(at.st_mode), target, *times)
    return snapshot


def _changed(row: Row, before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> list[str]:
    """Paths that differ and that the row does not allow."""
    differing = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    stray = sorted(path for path in differing if not any(_is_below(path, place) for place in (LOCK, *row.writes)))
    return [f"changed {', '.join(stray[:3])}{' and more' if len(stray) > 3 else ''}"] if stray else []


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


if __name__ == "__main__":
    sys.exit(main())
