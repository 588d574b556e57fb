"""The part of a plan that says how the nodes are reached."""

from __future__ import annotations

import hashlib

from pydantic import Field

from levelfield.specs.base import Value
from levelfield.specs.site import Host, Site


class NodeCommand(Value):
    """A command of the vendor's tools that runs on each node. Its output is recorded there and read later."""

    argv: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = Field(gt=0)


class LaunchPlan(Value):
    """How the nodes are reached. hosts: for ssh, one for each node, the first node first; else empty.

    code: the file of a site's own launcher; None for one of Levelfield or of a package.
    samples: the commands that are repeated during the run. facts: by name, the commands that run once.
    """

    launcher: str
    code: str | None = None
    site: Site
    hosts: tuple[Host, ...] = ()
    samples: tuple[NodeCommand, ...] = ()
    facts: dict[str, NodeCommand] = Field(default_factory=dict)


def rendezvous_port(run_id: str, ports: tuple[int, int]) -> int:
    """Return the port of a run's rendezvous on the first node: a function of the run id, from first to last port."""
    first, last = ports
    return first + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "big") % (last - first + 1)
