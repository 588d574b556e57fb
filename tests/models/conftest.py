"""The torch implementation's modules are siblings of its train.py, not a package: tests import them by its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "torch"))
