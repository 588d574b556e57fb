"""The routing of a mixture of experts: how many tokens chose each expert, by step and layer, over the whole layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

from levelfield.measure.raw_facts import ExpertShare, StepRecord
from levelfield.specs.architecture import Experts, Model
from levelfield.specs.case import Work
from levelfield.worker.loop import counted_steps

Counts = tuple[int, ...]
Routing = Mapping[int, Mapping[int, Counts]]  # step, layer, and the tokens of each expert

# A sum over the whole layout is the same number on every rank, except for the last bits of float32.
_AGREEMENT = 1e-6
_SHOWN = 5


def routing_of(shares: Iterable[ExpertShare]) -> dict[int, dict[int, Counts]]:
    """Return the counts by step and layer: the sums over the ranks. They need shares without `routing_reasons`."""
    found: dict[int, dict[int, Counts]] = {}
    for share in shares:
        layers = found.setdefault(share.step, {})
        before = layers.get(share.layer, (0,) * len(share.tokens))
        layers[share.layer] = tuple(a + b for a, b in zip(before, share.tokens, strict=False))
    return {step: dict(sorted(found[step].items())) for step in sorted(found)}


def recorded_steps(work: Work) -> tuple[int, ...]:
    """Return the steps whose routing a run has to record; none without experts."""
    steps = work.evidence.gradient_steps
    job = SimpleNamespace(model=work.model, training=work.training, gradient_steps=steps)
    return tuple(sorted(counted_steps(job)))


def mixture_layers(model: Model) -> list[int]:
    """Return the numbers of the layers that are mixtures."""
    return [layer for layer in range(model.layers) if model.is_mixture(layer)]


def routing_reasons(shares: Sequence[ExpertShare], work: Work) -> list[str]:
    """Check that each mixture's choices are known in each recorded step: tokens of the batch x chosen experts."""
    experts = work.model.experts
    if experts is None:
        return ["a routing was recorded, and the model has no experts"] if shares else []
    found = [reason for share in shares if (reason := _share_reason(share, work.model, experts))]
    found += _repeated(shares)
    return _shortened(found or _whole_reasons(routing_of(shares), work, experts))


def _share_reason(share: ExpertShare, model: Model, experts: Experts) -> str | None:
    where = f"step {share.step}, layer {share.layer}, rank {share.rank}"
    if not (0 <= share.layer < model.layers and model.is_mixture(share.layer)):
        return f"{where}: the layer is no mixture of experts"
    if len(share.tokens) != experts.count:
        return f"{where}: {len(share.tokens)} counts, expected {experts.count}, one for each expert"
    negative = next((tokens for tokens in share.tokens if tokens < 0), None)
    return f"{where}: a count of {negative}, expected 0 or more" if negative is not None else None


def _repeated(shares: Sequence[ExpertShare]) -> list[str]:
    seen = Counter((share.step, share.layer, share.rank) for share in shares)
    return [f"step {s}, layer {y}, rank {r}: recorded {n} times" for (s, y, r), n in seen.items() if n > 1]


def _whole_reasons(routing: Routing, work: Work, experts: Experts) -> list[str]:
    expected = recorded_steps(work)
    found = [f"step {step}: its routing was not to be recorded" for step in routing if step not in expected]
    choices = work.training.tokens_per_step * experts.chosen
    for step in expected:
        layers = routing.get(step, {})
        for layer in mixture_layers(work.model):
            if (total := sum(layers.get(layer, ()))) != choices:
                found.append(f"step {step}, layer {layer}: {total} choices, expected {choices}")
    return found


def auxiliary_reasons(records: Sequence[StepRecord], model: Model) -> list[str]:
    """Check that the routers' loss is there, finite and the same on all ranks, where the case has one."""
    router = model.experts.router if model.experts else None
    if router is None or not (router.auxiliary_loss or router.z_loss):
        strange = next((r for r in records if r.auxiliary_loss), None)
        return [f"step {strange.step}: {strange.auxiliary_loss}, and the case has none"] if strange else []
    by_step: dict[int, list[float]] = {record.step: [] for record in records}
    for record in records:
        if record.auxiliary_loss is not None:
            by_step[record.step].append(record.auxiliary_loss)
    return _shortened([f"step {step}: {why}" for step, values in sorted(by_step.items()) if (why := _wrong(values))])


def _wrong(values: Sequence[float]) -> str | None:
    if not values:
        return "no rank reports it"
    bad = next((value for value in values if not (math.isfinite(value) and value >= 0)), None)
    if bad is not None:
        return f"it is {bad}"
    apart = max(values) - min(values)
    return None if apart <= _AGREEMENT * max(values) else f"ranks disagree: {min(values)!r} and {max(values)!r}"


def auxiliary_curve(records: Iterable[StepRecord]) -> dict[int, float]:
    """Return the routers' loss of each step, from the lowest rank that has it."""
    known = (r for r in records if r.auxiliary_loss is not None)
    ordered = sorted(known, key=lambda record: (record.step, -record.rank))
    return {r.step: r.auxiliary_loss for r in ordered if r.auxiliary_loss is not None}


def changed_choices(counts: Counts, others: Counts) -> int:
    """Return how many choices differ at least: half the sum of the absolute differences; all for other lengths."""
    if len(counts) != len(others):
        return max(sum(counts), sum(others))
    return math.ceil(sum(abs(a - b) for a, b in zip(counts, others, strict=True)) / 2)


def _shortened(found: list[str]) -> list[str]:
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]
