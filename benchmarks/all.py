#!/usr/bin/env python3
"""Every benchmark, one after another, each with its own defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    folder = Path(__file__).parent
    failed = []
    for path in sorted(p for p in folder.glob("*.py") if p.name != "all.py"):
        print(f"\n== {path.stem}", flush=True)
        if subprocess.run([sys.executable, str(path)]).returncode:
            failed.append(path.stem)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
