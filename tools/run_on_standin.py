#!/usr/bin/env python3
"""Run a program on one pretended device. PYTHON has a CUDA build of torch.

The chip is that of LEVELFIELD_STANDIN_CHIP, by default an H100 of 80 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from standin.build import BuildError, build


def main(python: Path, program: list[str]) -> int:
    try:
        standin = build(python)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    chip = os.environ.get("LEVELFIELD_STANDIN_CHIP", "H100-80")
    with tempfile.TemporaryDirectory(prefix="standin-") as folder:
        # kernels that were timed on a pretended device must never serve a real one
        caches = {name: folder for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        environment = {**os.environ, **standin.environment(chip, 1), **caches}
        return subprocess.run([str(python), *program], env=environment).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path, metavar="PYTHON")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM ...")
    options = parser.parse_args()
    sys.exit(main(options.python, options.program))
