"""Which choices of experts a run of a mixture follows, and whether it records its own."""

from __future__ import annotations

from levelfield.specs.plan import ChoicesPlan, Plan
from levelfield.specs.reference import Reference
from levelfield.worker.choices import digest_of

MOST_RECORDED = 2**22  # choices of a run: each is a byte of events/rank0.choices.jsonl, before it is compressed


def choices_for(plan: Plan, reference: Reference | None) -> ChoicesPlan | None:
    """Return the reference's choices for a run of the same work and tokens. Else a run of one process records its own,
    so that it may become a reference. None where neither is so, and for a model without experts."""
    experts, training = plan.work.model.experts, plan.work.training
    if experts is None:
        return None
    if reference is not None and reference.choices is not None:
        same = reference.identity.work == plan.work_digest and reference.identity.corpus == plan.corpus.digest
        return ChoicesPlan(follows=digest_of(reference.choices), known=reference.choices) if same else None
    layers = experts.mixtures_below(plan.work.model.layers)
    few = training.steps * training.tokens_per_step * layers * experts.chosen <= MOST_RECORDED
    return ChoicesPlan(follows=None) if few and plan.world_size == 1 else None
