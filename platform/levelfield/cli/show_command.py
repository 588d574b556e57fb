"""`show`: a case with nothing left implicit."""

from __future__ import annotations

import argparse
import json

import yaml

from levelfield.cli.plugins import registry_of
from levelfield.measure.parameters import parameters
from levelfield.specs.case import Case, Scale


def execute(options: argparse.Namespace) -> int:
    case = registry_of(options).case(options.case)
    scales: list[Scale] = [options.scale] if options.scale else ["full", "smoke"]
    content: dict[str, object] = {
        "name": case.name,
        "title": case.title,
        "source": case.source,
        "tokenizer": case.tokenizer,
        "digest": case.fingerprint(),
        **{scale: _work(case, scale) for scale in scales},
    }
    if options.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=80), end="")
    return 0


def _work(case: Case, scale: Scale) -> dict[str, object]:
    work = case.work(scale)
    count = parameters(work.model, work.training.sequence_length).total
    tuning = case.tuning.get(scale)
    chosen = tuning.model_dump(exclude_none=True) if tuning else {}
    return {"parameters": count, "digest": work.fingerprint(), **work.model_dump(mode="json"), "default_tuning": chosen}
