"""Faults that are planted from outside: the job differs from the definition, and the comparison must see it.

A framework that does not see one of them does not read that field of the job: it has a value of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from levelfield.testing.findings import Fails
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.framework_kit.known_curves import curve_by_torch, known_curve
from levelfield.testing.framework_kit.layout_checks import is_sharp, offered_runs
from levelfield.testing.framework_kit.small_jobs import SINGLE
from levelfield.testing.framework_kit.small_models import with_large_weights
from levelfield.testing.framework_kit.training_curves import Curve, compare, first_steps
from levelfield.testing.framework_kit.variants import small_job

STEPS = 10
Job = dict[str, Any]


@dataclass(frozen=True)
class PlantedJob:
    """A change of a job. applies: whether the model has what is changed."""

    name: str
    change: Callable[[Job], None]
    applies: Callable[[Job], bool] = lambda job: True


def _training(*path: str, by: Callable[[Any], Any]) -> Callable[[Job], None]:
    return _changed("training", *path, by=by)


def _changed(*path: str, by: Callable[[Any], Any]) -> Callable[[Job], None]:
    """Return a function that changes the value at a path of keys."""

    def change(job: Job) -> None:
        inner = job
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = by(inner[path[-1]])

    return change


PLANTED = (
    PlantedJob("rate 1 % higher", _training("schedule", "peak_lr", by=lambda value: value * 1.01)),
    PlantedJob("warm-up a step longer", _training("schedule", "warmup_steps", by=lambda value: value + 1)),
    PlantedJob("another beta1", _training("optimizer", "beta1", by=lambda value: value - 0.05)),
    PlantedJob("another beta2", _training("optimizer", "beta2", by=lambda value: value + 0.04)),
    PlantedJob("Adam's epsilon 1e-5", _training("optimizer", "eps", by=lambda value: 1e-5)),
    PlantedJob("no weight decay", _training("optimizer", "weight_decay", by=lambda value: 0.0)),
    PlantedJob("clipped at half", _training("gradient_clip", by=lambda value: value / 2)),
    PlantedJob("other initial weights", _training("seed", by=lambda value: value + 1)),
    PlantedJob("another order of data", _changed("data", "seed", by=lambda value: value + 1)),
    PlantedJob("weights 1 % larger", _changed("model", "init_std", by=lambda value: value * 1.01)),
    PlantedJob("the norms' epsilon 1e-3", _changed("model", "norm_eps", by=lambda value: 1e-3)),
    PlantedJob(
        "rotary base 1 % higher",
        _changed("model", "rope_base", by=lambda value: value * 1.01),
        lambda job: job["model"]["rope_base"] is not None,
    ),
)


def faults(subject: FrameworkSubject) -> str:
    """Check that the comparison sees every planted fault that applies, in each small model."""
    seen = 0
    for family, model in subject.models.items():
        known = first_steps(known_curve(subject, family).curve, STEPS)
        for planted in _applying(model):
            _check_seen(subject, f"{family}: {planted.name}", known, planted)
            seen += 1
            subject.say(f"planted {family}: {planted.name}: seen")
    seen += _other_activation(subject) + _one_rank_apart(subject)
    return f"{seen} planted faults are seen"


def _applying(model: Job) -> Iterator[PlantedJob]:
    job = small_job(model, SINGLE, "fp32", steps=STEPS)
    return (planted for planted in PLANTED if planted.applies(job))


def _check_seen(subject: FrameworkSubject, what: str, known: Curve, planted: PlantedJob) -> None:
    family = what.split(":")[0]
    job = copy.deepcopy(small_job(subject.models[family], SINGLE, "fp32", steps=STEPS))
    planted.change(job)
    try:
        found = compare(subject.train(job), known)
    except Fails:
        return  # a training that does not end is seen as well
    if found.within():
        raise Fails(f"{what}: the training does not change", "read this value from the job, and have none of your own")


def _other_activation(subject: FrameworkSubject) -> int:
    """Train GPT with the other form of GELU: with large weights the comparison must see it."""
    if not {"gelu", "gelu_tanh"} <= set(subject.manifest.architecture) or "gpt" not in subject.models:
        return 0
    model = with_large_weights(subject.models["gpt"])
    known = curve_by_torch(subject, small_job(model, SINGLE, "fp32", steps=STEPS)).curve
    found = subject.train(small_job({**model, "activation": "gelu"}, SINGLE, "fp32", steps=STEPS))
    if is_sharp(compare(found, known)):
        raise Fails("gpt: the other form of GELU: the training does not change", "`gelu` is the erf form")
    return 1


def _one_rank_apart(subject: FrameworkSubject) -> int:
    """Give the last of two data ranks another order of data: the sum of the tokens' checksums must show it."""
    each = next((each for each in offered_runs(subject) if each.variant.layout.get("data", 1) == 2), None)
    if each is None:
        return 0
    job = small_job(subject.models[each.family], each.variant, "fp32", steps=STEPS)
    other = copy.deepcopy(job)
    other["data"]["seed"] += 1
    known = first_steps(known_curve(subject, each.family).curve, STEPS)
    try:
        found = compare(subject.train(job, others={each.variant.ranks - 1: other}), known)
    except Fails:
        return 1
    if found.within():
        raise Fails(f"{each}: the last rank trains other data, and nothing shows it", "count tokens on each data rank")
    return 1
