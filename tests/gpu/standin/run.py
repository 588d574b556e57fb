#!/usr/bin/env python3
"""Run a program on one pretended device: `run.py PYTHON PROGRAM ...`. PYTHON has a CUDA build of torch.

The chip is that of LEVELFIELD_STANDIN_CHIP, by default an H100 of 80 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from standin.build import BuildError, build


def main(python: str, *program: str) -> int:
    try:
        standin = build(Path(python))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    chip = os.environ.get("LEVELFIELD_STANDIN_CHIP", "H100-80")
    with tempfile.TemporaryDirectory(prefix="standin-") as folder:
        # kernels that were timed on a pretended device must never serve a real one
        caches = {name: folder for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        environment = {**os.environ, **standin.environment(chip, 1), **caches}
        return subprocess.run([python, *program], env=environment).returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
