"""Record torch's curves of the small models for machines without torch: what `framework check` compares with there.

    .venvs/dev/bin/python tools/record_curves.py

writes platform/levelfield/testing/framework_kit/recorded/<name>.json.
"""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from layouts import COMMON_MODELS, MODELS, SINGLE, Curve, small_job, train
from levelfield.testing.framework_kit.framework_subject import RECORDED_FOLDER, definition_digest
from levelfield.testing.framework_kit.layout_checks import FEW_STEPS, LARGE_STEPS
from levelfield.testing.framework_kit.small_jobs import PART_MODELS, enlarge_vocabulary, enlarge_weights


def jobs() -> dict[str, dict[str, Any]]:
    """Every job that the check compares with torch, by the name of its file."""
    large = {family: enlarge_weights(model) for family, model in MODELS.items()}
    parts = {part: enlarge_weights(model) for part, model in PART_MODELS.items()}
    words = {family: enlarge_vocabulary(MODELS[family]) for family in COMMON_MODELS}
    return {
        **{family: small_job(model, SINGLE) for family, model in MODELS.items()},
        **{f"{family}_large": small_job(model, SINGLE, FEW_STEPS) for family, model in large.items()},
        **{f"part_{part}": small_job(model, SINGLE, FEW_STEPS) for part, model in parts.items()},
        **{f"{family}_words": small_job(model, SINGLE, LARGE_STEPS) for family, model in words.items()},
    }


def curve_content(job: Mapping[str, Any], curve: Curve, version: str) -> dict[str, Any]:
    """Return a curve as the content of a file of `recorded`."""
    return {"definition": definition_digest(job), "torch": version, **dataclasses.asdict(curve)}


def main() -> None:
    RECORDED_FOLDER.mkdir(exist_ok=True)
    for name, job in jobs().items():
        content = curve_content(job, train(job), version("torch").partition("+")[0])
        (RECORDED_FOLDER / f"{name}.json").write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
        print(f"recorded {name}", flush=True)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
