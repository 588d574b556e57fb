"""Commands of Slurm that only pretend, first in PATH. Each prints what a test planted, and keeps its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "sinfo", "scancel")
# The answers of a command are used up one after another; the last one stays.
_PROGRAM = """#!/bin/sh
folder={folder}
echo "$0 $*" >> "$folder/calls"
env > "$folder/{name}.env"
number=$(ls "$folder/{name}" 2>/dev/null | head -n 1)
[ -n "$number" ] || exit 0
cat "$folder/{name}/$number/out"
cat "$folder/{name}/$number/err" >&2
code=$(cat "$folder/{name}/$number/code")
[ "$(ls "$folder/{name}" | wc -l)" = 1 ] || rm -r "$folder/{name}/$number"
exit "$code"
"""


class PlantedSlurm:
    """The commands in a folder of the test's own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        programs = folder / "bin"
        programs.mkdir(parents=True)
        for name in COMMANDS:
            (programs / name).write_text(_PROGRAM.format(folder=folder, name=name))
            (programs / name).chmod(0o755)
        patch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def replace(self, command: str, script: str) -> None:
        """Let a command do something else, as a shell script."""
        (self._folder / "bin" / command).write_text(f"#!/bin/sh\n{script}\n")

    def says(self, command: str, *answers: str | tuple[int, str]) -> None:
        """Plant the answers of a command: a text, or an exit code with a complaint."""
        for number, answer in enumerate(answers):
            place = self._folder / command / f"{number:03}"
            place.mkdir(parents=True)
            code, complaint = (0, "") if isinstance(answer, str) else answer
            (place / "out").write_text(answer if isinstance(answer, str) else "")
            (place / "err").write_text(complaint)
            (place / "code").write_text(str(code))

    def calls(self, command: str) -> list[list[str]]:
        """Return the arguments of each call of a command, in order."""
        file = self._folder / "calls"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [arguments for program, *arguments in lines if Path(program).name == command]

    def environment(self, command: str) -> str:
        return (self._folder / f"{command}.env").read_text()


def ended(cause: str, *ends: tuple[int, int | None, int | None], evidence: str | None = None) -> str:
    """Return the last record of a node. ends: rank, exit code, signal."""
    ranks = [{"rank": r, "exit_code": code, "signal": number, "stopped_by_us": False} for r, code, number in ends]
    return json.dumps({"time_ns": 1, "event": "ended", "cause": cause, "evidence": evidence, "ends": ranks}) + "\n"
