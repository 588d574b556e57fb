"""Runs of plugins that cheat: a case with its reference, and one run for each cheat, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cheating.cheat import CHIP, Cheat

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).parent / "plugins"
WORKED_EXAMPLE = ROOT / "platform/levelfield/testing/framework_kit/template"
# A second between two samples would leave few of them in a window of half a second.
COMMAND = """
import sys, levelfield.run.run_devices as devices
from levelfield.cli.main import main
devices.SAMPLE_INTERVAL_SECONDS = float(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
HONEST_BATCH, NOISE_BATCH = "4", "8"  # micro-batches, whose rounding differs
HONEST = Cheat("", "trains", None)
HONEST_ON_CHIP = Cheat("", "trains", None, CHIP)


class CheatedRuns:
    """Runs in a folder, against a reference that an honest run of the same framework gave."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plugins = folder, folder / "plugins"
        shutil.copytree(PLUGINS, self.plugins, ignore=shutil.ignore_patterns("__pycache__"))
        framework = self.plugins / "models/cheating"
        for path in WORKED_EXAMPLE.glob("*.py"):
            if not (framework / path.name).exists():
                shutil.copy(path, framework)
        first, other = (self.result(HONEST, "--micro-batch", size)["run_id"] for size in (HONEST_BATCH, NOISE_BATCH))
        self._command(HONEST, "align", "references", "promote", first, "--reason", "it is honest")
        self._command(HONEST, "align", "references", "noise", "cheated_smoke_fp32", other)

    def result(self, cheat: Cheat, *options: str) -> dict[str, Any]:
        """Return the result of a run whose plugins cheat so."""
        case = ("--case", f"cheated:cheating:{cheat.target}:1:1", "--scale", "smoke", "--python", sys.executable)
        (result,) = json.loads(self._command(cheat, *case, *cheat.options, *options, "--json"))
        assert isinstance(result, dict)
        return result

    def _command(self, cheat: Cheat, *arguments: str) -> str:
        """Return what a command prints. A peak that an earlier run measured is not known to one that probes."""
        variables = {name: text for name, text in os.environ.items() if not name.startswith("LEVELFIELD_")}
        cache = tempfile.mkdtemp(dir=self.folder) if "--probe" in arguments else str(self.folder / "cache")
        variables |= {"PYTHONPATH": str(ROOT / "platform"), "CHEAT": cheat.name, "LEVELFIELD_STORE": "none"}
        variables |= {"LEVELFIELD_LOCKS": str(self.folder / "locks"), "XDG_CACHE_HOME": cache}
        variables |= {"LEVELFIELD_RUNS": str(self.folder / "runs"), "XDG_CONFIG_HOME": os.devnull}
        argv = [sys.executable, "-c", COMMAND, str(cheat.interval), *arguments, "--plugins", str(self.plugins)]
        done = subprocess.run(argv, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=300)
        if not done.stdout:
            raise RuntimeError(done.stderr)
        return done.stdout
