"""The hosts of a plan: the first ones of the site's list, as many as the plan has nodes."""

from __future__ import annotations

from levelfield.specs.launch import LaunchPlan


def launch_of(asked: LaunchPlan | None, nodes: int) -> LaunchPlan | None:
    """Return how the plan's nodes are reached; None for this machine alone."""
    return asked and asked.model_copy(update={"hosts": asked.hosts[:nodes]})
