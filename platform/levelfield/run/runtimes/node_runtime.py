"""Runtime `process` on nodes that a launcher reaches: the same ranks, with the folders and addresses of their node."""

from __future__ import annotations

from levelfield.contracts.execution import NodeWork
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.run.runtimes.rank_work import NodeFolders, rank_work, ranks_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import LaunchPlan

# Of the collective libraries: the network that connects the nodes.
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class NodeRuntime(ProcessRuntime):
    """The ranks of nodes that share this machine's folders: its checkout, environments and runs.

    first_node: the address of node 0 for the ranks; a launcher that only knows it at the start gives FIRST_NODE.
    """

    def __init__(self, first_node: str, folders: NodeFolders | None = None) -> None:
        self._first_node, self._folders = first_node, folders

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the work of one node. paths: of the run as the node sees it."""
        visible = {**plan.hardware.visible, **site_variables(launch_of(plan), node_rank)}
        ranks = ranks_of(plan, node_rank)
        work = (rank_work(plan, paths, rank, self._first_node, visible, self._folders) for rank in ranks)
        hosts = launch_of(plan).hosts
        host = hosts[node_rank] if hosts else None
        return NodeWork(
            node_rank=node_rank,
            address=host.reached_at if host else self._first_node if node_rank == 0 else f"node{node_rank}",
            processes=tuple(work),
            name=host.name if host else f"node{node_rank}",
        )


def launch_of(plan: Plan) -> LaunchPlan:
    """Return how the plan's nodes are reached. A plan for this machine alone is a fault of the caller."""
    assert plan.launch is not None, "a plan for a launcher of many machines has `launch`"
    return plan.launch


def site_variables(launch: LaunchPlan, node_rank: int) -> dict[str, str]:
    """Return the variables of a site for the ranks of a node: its own, and the interface of the collectives."""
    host = launch.hosts[node_rank] if launch.hosts else None
    interface = (host.interface if host else None) or launch.site.interface
    return {**launch.site.environment, **(dict.fromkeys(_INTERFACE_VARIABLES, interface) if interface else {})}
