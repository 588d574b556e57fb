"""Bundles of other machines, with the code of their day, verify here.

They lie in docs/verified/bundles. gpt3_smoke.zip: `--case gpt3_6.7B:paddle:cpu:1:2` on two cores of an
AMD EPYC, 2026-11-23, then `bundle`. virtual_machine.zip:
`--case gpt3_6.7B+steps8+batch2:paddle:cpu:1:1` in a machine that QEMU emulates: an Intel Haswell,
Debian 13, Python 3.13, its own kernel and clock, the zone of Shanghai, another user; the same day.
A change of a formula makes this fail. Then the formula gets a new version, and old results keep theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driving import ROOT
from levelfield.cli.main import main

BUNDLES = ROOT / "docs/verified/bundles"


@pytest.mark.parametrize("name", ["gpt3_smoke.zip", "virtual_machine.zip"])
def test_every_figure_follows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "verify", str(BUNDLES / name), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["word"], run["seal"]["word"], run["contradictions"]) == ("follows", "sealed", [])


def test_it_does_not_depend_on_the_user_the_zone_or_the_language(tmp_path: Path) -> None:
    """As in a bare container: no home, no cache, another time zone, no language, another folder."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TZ": "Pacific/Auckland", "LC_ALL": "C"}
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), "evidence", "verify", str(BUNDLES / "gpt3_smoke.zip")]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "follows" in done.stdout, done.stderr
