"""The launcher of docs/pbs with stand-ins for PBS: several nodes on this machine."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "docs/pbs/launchers/pbs/launcher.py"
STAND_INS = {
    "qsub": "cd {folder}; for n in $(seq {nodes}); do echo 127.0.0.1; done > nodes\n"
    'export PBS_NODEFILE={folder}/nodes; setsid bash "$3" > /dev/null 2>&1 & echo $! > {folder}/job; echo 7.pbs',
    "qstat": 'kill -0 $(cat {folder}/job) 2>/dev/null && echo "    job_state = R" || echo "    job_state = F"',
    "qdel": "kill -TERM -- -$(cat {folder}/job)",
    "pbsdsh": 'shift; n=0; for host in $(cat "$PBS_NODEFILE"); do export LEVELFIELD_LOCKS={folder}/locks$n\n'
    'PBS_NODENUM=$n "$@" & n=$((n + 1)); done; wait',
}


def example() -> str:
    """The code of the launcher that docs/writing-a-launcher.md shows."""
    return EXAMPLE.read_text(encoding="utf-8")


def planted(folder: Path, text: str) -> Path:
    """A folder of plugins whose launcher has this text."""
    (folder / "launchers" / "pbs").mkdir(parents=True)
    (folder / "launchers" / "pbs" / "launcher.py").write_text(text)
    return folder


def stand_ins(folder: Path, nodes: int = 2) -> None:
    """Write the commands of PBS, which run every node's part on this machine."""
    folder.mkdir()
    for name, body in STAND_INS.items():
        text = body.replace("{folder}", str(folder)).replace("{nodes}", str(nodes))
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
