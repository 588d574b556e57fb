"""A clone of this tree with commits of its own, for tests of builds: nights, bisections, pairs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from driving import copy_checkout
from levelfield.specs.record import Purpose, RunRecord
from levelfield.store.database import Store

SUITE = """\
schema: levelfield.suite/1
title: One entry
entries:
  - {case: "tiny:fake:F1", name: tiny, scale: smoke}
"""


class ClonedProject:
    """A clone of the tree as it would be committed now, with its own runs, store and caches."""

    def __init__(self, folder: Path) -> None:
        self.code, self.data = folder / "code", folder / "data"
        self.code.mkdir(parents=True)
        copy_checkout(self.code)
        self.git("init", "-q")
        self.steps_last(0.03)
        self.first = self.commit("steps of 30 ms")

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "gc.auto=0"]
        done = subprocess.run(["git", *who, *words], cwd=self.code, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def steps_last(self, seconds: float) -> None:
        """Change the code of the training: that is what a nightly has to find."""
        path = self.code / "tests/core/plugins/models/fake/train.py"
        text, count = re.subn(r'("FAKE_STEP_SECONDS", ")[0-9.]+"', rf'\g<1>{seconds}"', path.read_text())
        assert count == 1
        path.write_text(text)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        own = {
            "LEVELFIELD_NO_BOOTSTRAP": "1",
            "LEVELFIELD_RUNS": str(self.data / "runs"),
            "LEVELFIELD_STORE": str(self.data / "results.sqlite"),
            "XDG_CACHE_HOME": str(self.data / "cache"),
            "FAKE_DEVICES": "1",
        }
        argv = [sys.executable, "run_benchmarks.py", *arguments]
        return subprocess.Popen(
            argv,
            cwd=self.code,
            env={**os.environ, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in err, err
        return process.returncode, out, err


class ClonedNights(ClonedProject):
    """A clone whose nights run one entry."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.suite = self.data / "one.yaml"
        self.suite.parent.mkdir()
        self.suite.write_text(SUITE)

    def nightly_arguments(self, night: str) -> list[str]:
        plugins = str(self.code / "tests/core/plugins")
        how = ["--plugins", plugins, "--python", sys.executable, "--no-control"]
        return ["nightly", "run", "--suite", str(self.suite), "--night", night, *how]

    def night(self, name: str, *more: str, **variables: str) -> tuple[int, list[dict[str, Any]], str]:
        """Run a night. Return its exit code, its findings, and what it printed on stderr."""
        process = self.start(*self.nightly_arguments(name), "--json", *more, **variables)
        out, err = process.communicate(timeout=600)
        assert out and "Traceback" not in err, err
        return process.returncode, json.loads(out)["findings"], err

    def records(self) -> list[RunRecord]:
        """Return the stored runs that have a figure to compare, by their begin."""
        with Store.open(str(self.data / "results.sqlite")) as store:
            names = [point.run_id for points in store.points().values() for point in points]
            return sorted(map(store.record, names), key=lambda record: record.began)

    def repeat_the_run(self, runs: Iterable[tuple[str, Purpose]]) -> None:
        """Store the only run once more for each night and purpose, each a little slower or faster than the last."""
        (real,) = self.records()
        for number, (night, purpose) in enumerate(runs):
            speed = (real.tokens_per_second_per_device or 0.0) * (1 + 0.002 * (number % 3 - 1))
            fields = {
                "run_id": f"quiet{number}",
                "content": f"sha256:{number:064}",
                "night": night,
                "purpose": purpose,
                "began": f"{night}T02:{number:02}:00+00:00",
            }
            with Store.open(str(self.data / "results.sqlite")) as store:
                store.add([real.model_copy(update={**fields, "tokens_per_second_per_device": speed})])


def of_speed(findings: list[dict[str, Any]]) -> dict[str, Any]:
    (finding,) = [f for f in findings if f["figure"] == "tokens_per_second_per_device"]
    return finding
