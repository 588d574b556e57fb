"""Cases, vendors, frameworks and tuning files with seeded damage, from the shipped ones."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import ROOT, damaged, damaged_bytes, outcome, seeds

CASES = sorted((ROOT / "configs" / "cases").glob("*.yaml"))
VENDORS = sorted((ROOT / "vendors").glob("*/vendor.yaml"))
FRAMEWORKS = sorted((ROOT / "models").glob("*/implementation.yaml"))


def written(path: Path, source: Path, draw: random.Random, **changes: Any) -> None:
    """Write a damaged copy of a document: its values, or its bytes."""
    content = yaml.safe_load(source.read_text())
    content.update(changes)
    text = yaml.safe_dump(damaged(content, draw), allow_unicode=True) if draw.random() < 0.8 else source.read_text()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = text.encode(errors="surrogateescape")
    path.write_bytes(whole if draw.random() < 0.8 else damaged_bytes(whole, draw))


@pytest.mark.parametrize("seed", seeds(15))
def test_a_damaged_case_ends_in_words(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    source = draw.choice(CASES)
    path = tmp_path / "configs" / "cases" / source.name
    written(path, source, draw)
    outcome("show", "cases", "--plugins", str(tmp_path))
    outcome("--case-file", str(path), "--case", f"{source.stem}:torch", "--dry-run", "--scale", "smoke", "--no-store")


@pytest.mark.parametrize("seed", seeds(15))
def test_a_damaged_vendor_ends_in_words(seed: int, tmp_path: Path) -> None:
    draw = random.Random(1000 + seed)
    source = draw.choice(VENDORS)
    written(tmp_path / "vendors" / "other" / "vendor.yaml", source, draw, name="other")
    outcome("show", "vendors", "--plugins", str(tmp_path))
    outcome("show", "vendor", "other", "--plugins", str(tmp_path))


@pytest.mark.parametrize("seed", seeds(15))
def test_a_damaged_framework_ends_in_words(seed: int, tmp_path: Path) -> None:
    draw = random.Random(2000 + seed)
    source = draw.choice(FRAMEWORKS)
    folder = tmp_path / "models" / "other"
    folder.mkdir(parents=True)
    shutil.copy(source.parent / "train.py", folder)
    written(folder / "implementation.yaml", source, draw, framework="other")
    outcome("show", "frameworks", "--plugins", str(tmp_path))
    outcome("--case", "gpt2_small:other", "--dry-run", "--scale", "smoke", "--plugins", str(tmp_path), "--no-store")
