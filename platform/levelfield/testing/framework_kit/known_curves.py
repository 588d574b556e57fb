"""torch's curve of a small model in one process: trained here where torch's environment is made, else recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from levelfield.errors import LevelfieldError
from levelfield.plan.environment import environment_of
from levelfield.run.runtimes.environments import is_ready
from levelfield.specs.vendor import HOST_KIND
from levelfield.testing.findings import Fails, Missing
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.framework_kit.small_jobs import SINGLE, job_of
from levelfield.testing.framework_kit.training_curves import Curve

RECORDED = Path(__file__).with_name("recorded")
TORCH = "torch"
DEFINED = ("model", "training", "corpus", "data")  # keys of a job that say what is trained; the others say how


@dataclass(frozen=True)
class KnownCurve:
    """torch's curve, and where it comes from."""

    curve: Curve
    source: str


def known_curve(subject: FrameworkSubject, family: str) -> KnownCurve:
    """Return torch's curve of a small model in float32. Raises Missing where it is neither trained nor recorded."""
    return curve_by_torch(subject, job_of(subject.models[family], SINGLE))


def curve_by_torch(subject: FrameworkSubject, job: Mapping[str, Any]) -> KnownCurve:
    """Return torch's curve of a job in one process, computed once. Raises Missing as `known_curve`."""
    key = f"curve {definition_digest(job)}"
    if key not in subject.kept:
        subject.kept[key] = _trained(subject, job) or recorded_curve(job)
    return subject.kept[key]  # type: ignore[no-any-return]


def _trained(subject: FrameworkSubject, job: Mapping[str, Any]) -> KnownCurve | None:
    """Train torch's curve here; None where its environment is not made."""
    torch = _torch(subject)
    if torch is None:
        return None
    try:
        curve = torch.train(job)
    except Fails as error:
        raise Missing(f"torch's own curve cannot be trained: {error.says}", "check torch first") from None
    return KnownCurve(curve, f"torch {torch.manifest.version}, trained here")


def _torch(subject: FrameworkSubject) -> FrameworkSubject | None:
    if TORCH not in subject.kept:
        found = FrameworkSubject(TORCH, say=subject.say) if TORCH in subject.registry.frameworks else None
        subject.kept[TORCH] = found if found and _is_made(found) else None
    return subject.kept[TORCH]  # type: ignore[no-any-return]


def _is_made(torch: FrameworkSubject) -> bool:
    needs = torch.manifest.requirements[HOST_KIND]
    try:
        return is_ready(environment_of(torch.manifest, HOST_KIND, needs.stages(), None, "process"))
    except LevelfieldError:
        return False


def definition_digest(job: Mapping[str, Any]) -> str:
    """Return the digest of what a job trains, whatever the layout."""
    defined = json.dumps({key: job[key] for key in DEFINED}, sort_keys=True)
    return hashlib.sha256(defined.encode()).hexdigest()


def recorded_curve(job: Mapping[str, Any]) -> KnownCurve:
    """Return the recorded curve of a job. Raises Missing without one."""
    digest = definition_digest(job)
    content = _all_recorded().get(digest)
    if content is None:
        raise Missing(f"found no recorded curve of definition {digest[:12]}", "make torch's environment: run it once")
    return KnownCurve(curve_of(content), f"torch {content['torch']}'s recorded curve")


@cache
def _all_recorded() -> dict[str, dict[str, Any]]:
    contents = (json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json")))
    return {content["definition"]: content for content in contents}


def curve_of(content: Mapping[str, Any]) -> Curve:
    """Return the curve of a file of `recorded`, whose keys and lists JSON has changed."""
    series = {name: tuple(content[name]) for name in ("losses", "grad_norms", "tokens", "token_checksums", "auxiliary")}
    return Curve(
        **series,
        weights=content["weights"],
        gradients={int(step): squares for step, squares in content["gradients"].items()},
        final={name: tuple(values) for name, values in content["final"].items()},
        experts={
            int(step): {int(layer): tuple(counts) for layer, counts in layers.items()}
            for step, layers in content["experts"].items()
        },
    )
