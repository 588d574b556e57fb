"""Finds the stored reference that a plan is compared with."""

from __future__ import annotations

from levelfield.catalog.registry import Registry
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference, reference_name


def reference_of(registry: Registry, plan: Plan) -> Reference | None:
    """Return the reference of the plan's case, scale and precision, else that of another case with the same work.

    Cases that differ at full scale only have the same work at smoke scale. Raises DocumentError for a damaged one.
    """
    name = reference_name(plan.case, plan.scale, plan.work.training.precision)
    if name in registry.references:
        return registry.reference(name)
    others = (registry.reference(other) for other in sorted(registry.references))
    return next((found for found in others if found.identity.work == plan.work_digest), None)
