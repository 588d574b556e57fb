"""The hosts of a plan: the first ones of the site's list, as many as the plan has nodes, and what each runs."""

from __future__ import annotations

from levelfield.contracts.node_commands import recorded_commands
from levelfield.contracts.vendor import Vendor
from levelfield.specs.launch import LaunchPlan
from levelfield.specs.selector import Selector


def launch_of(asked: LaunchPlan | None, nodes: int, vendor: Vendor) -> LaunchPlan | None:
    """Return how the plan's nodes are reached, and what each runs for the vendor; None for this machine alone."""
    if asked is None:
        return None
    commands = recorded_commands(vendor)
    recorded = {"samples": commands.samples, "facts": dict(commands.facts)}
    return asked.model_copy(update={"hosts": asked.hosts[:nodes], **recorded})


def unused_hosts(asked: LaunchPlan | None, text: str, selector: Selector) -> tuple[str, ...]:
    """Return a sentence where there are more hosts than the run uses, and the case string has no number of nodes."""
    if asked is None or len(asked.hosts) <= selector.nodes or len(text.split(":")) > 3:
        return ()
    return (
        f"{selector.nodes} of {len(asked.hosts)} hosts is used, as '{text}' has no number of nodes; write "
        f"case:framework:chip:{len(asked.hosts)} for all",
    )
