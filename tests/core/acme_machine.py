"""A machine with the tests' plugins and the vendor acme, whose tool is a script, first in PATH."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from stand_ins import stand_in


class AcmeMachine:
    def __init__(
        self, folder: Path, vendor: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._capsys = folder, capsys
        self.plugins = Path(shutil.copytree(PLUGINS, folder / "plugins"))
        self.vendor_file = self.plugins / "vendors/acme/vendor.yaml"
        self.vendor_file.parent.mkdir()
        self.vendor_file.write_text(vendor)
        (folder / "bin").mkdir()
        patch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for name in ("ACME_VISIBLE_DEVICES", "FAKE_DEVICES"):
            patch.delenv(name, raising=False)
        patch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)

    def tool(self, body: str) -> None:
        stand_in(self.folder / "bin/acme-smi", body)

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, the output and the errors on one line."""
        code = main([*arguments, "--plugins", str(self.plugins)])
        printed = self._capsys.readouterr()
        return code, printed.out, " ".join(printed.err.split())

    def run(self, case: str, *arguments: str) -> tuple[int, str, str]:
        options = ["--case", case, "--scale", "smoke", "--python", sys.executable, "--runs", str(self.folder / "runs")]
        return self.command(*options, *arguments)

    def result(self, case: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(case, "--json", *arguments)
        assert code == 0, err
        (result,) = json.loads(out)
        assert isinstance(result, dict)
        return result

    @property
    def paths(self) -> RunPaths:
        (folder,) = (self.folder / "runs").iterdir()
        return RunPaths(folder)
