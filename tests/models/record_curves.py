"""Record torch's curves of the small models for machines without torch: what `framework check` compares with there.

    PYTHONPATH=platform python tests/models/record_curves.py

writes platform/levelfield/testing/framework_kit/recorded/<family>.json.
"""

from __future__ import annotations

import json
from importlib.metadata import version

from layouts import MODELS, SINGLE, job_of, train
from levelfield.testing.framework_kit.known_curves import RECORDED, curve_content


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    for family, model in MODELS.items():
        job = job_of(model, SINGLE)
        content = curve_content(job, train(job), version("torch").partition("+")[0])
        (RECORDED / f"{family}.json").write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
        print(f"recorded {family}", flush=True)


if __name__ == "__main__":
    main()
