"""Run directories with seeded damage, read by every command that reads runs."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
from fuzzing import damaged, damaged_bytes, outcome, seeds
from levelfield.specs.paths import RunPaths
from recorded_runs import seal_again


def damage(path: Path, draw: random.Random) -> None:
    """Damage a file: the values of its JSON, or its bytes."""
    content = path.read_bytes()
    if draw.random() < 0.6:
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        if not lines:
            return
        index = draw.randrange(len(lines))
        lines[index] = json.dumps(damaged(json.loads(lines[index]), draw))
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_bytes(damaged_bytes(content, draw))


@pytest.mark.parametrize("seed", seeds(15))
def test_a_damaged_run_ends_in_words(seed: int, run: RunPaths, tmp_path: Path) -> None:
    draw = random.Random(3000 + seed)
    outcome("evidence", "collect", str(run.root))
    files = sorted(path for path in run.root.rglob("*.json*") if path.is_file())
    for path in draw.sample(files, draw.randint(1, 3)):
        damage(path, draw)
    if draw.random() < 0.5 and run.outcome.exists():
        # outcome.json itself may be damaged: then the seal stays as it is
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            seal_again(run)
    runs = ("--runs", str(run.root.parent))
    outcome("show", "runs", *runs)
    outcome("report", str(run.root), *runs, "--no-store")
    outcome("evidence", "collect", str(run.root), *runs)
    outcome("compare", str(run.root), str(run.root), *runs, "--no-store")
    outcome("evidence", "bundle", str(run.root), "--output", str(tmp_path / "a.zip"), *runs)
    if (tmp_path / "a.zip").exists():
        outcome("evidence", "verify", str(tmp_path / "a.zip"))


@pytest.mark.parametrize("seed", seeds(10))
def test_a_damaged_bundle_ends_in_words(seed: int, run: RunPaths, tmp_path: Path) -> None:
    draw = random.Random(4000 + seed)
    outcome("evidence", "collect", str(run.root))
    path = tmp_path / "a.zip"
    outcome("evidence", "bundle", str(run.root), "--output", str(path), "--runs", str(run.root.parent))
    path.write_bytes(damaged_bytes(path.read_bytes(), draw))
    outcome("evidence", "verify", str(path))
    outcome("evidence", "verify", str(path), "--json")
