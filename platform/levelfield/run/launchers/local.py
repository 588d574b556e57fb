"""Launcher `local`: all ranks run on this machine, and this process watches them until the last has ended."""

from __future__ import annotations

import time
from dataclasses import replace

from levelfield.contracts.execution import Cause, NodeSource, Outcome, Request, Watch
from levelfield.node import rank_processes
from levelfield.node.control_groups import MemoryKillWatch
from levelfield.node.process_identity import new_mark
from levelfield.node.rank_processes import POLL_SECONDS, Ranks
from levelfield.run.launchers.launched_ranks import (
    build_request,
    failure_evidence,
    fill_in_port,
    find_free_port,
    parse_process_ends,
)
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.runtimes.process_runtime import REMOVED_VARIABLES, inherited_variables
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


class LocalLauncher:
    """Launches all ranks as processes of this machine."""

    name = "local"

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """Return the request of one node with every rank. No side effect."""
        return build_request(plan, paths, self.name, runtime, node_count=1, removed_variables=REMOVED_VARIABLES)

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all ranks and wait. Every started process group is ended before it returns or raises."""
        kill_watch, ranks, port = MemoryKillWatch(), Ranks(new_mark()), find_free_port()
        try:
            try:
                for process in request.nodes[0].processes:
                    environment = {**inherited_variables(), **fill_in_port(process, port)}
                    ranks.start(process.rank, list(process.argv), environment, process.log)
            except OSError as error:
                outcome = _stop_ranks(ranks, "launch-error", f"{error.filename or 'process'}: {error.strerror}")
            else:
                outcome = _supervise(ranks, Liveness(request), watch)
        except OSError as error:  # raised by reading the run's files
            outcome = _stop_ranks(ranks, "storage", f"{error.filename or request.events_dir}: {error.strerror}")
        except KeyboardInterrupt:
            outcome = _stop_ranks(ranks, "interrupted", "interrupted by the user")
        finally:
            ranks.stop()
        kills = kill_watch.kills(ranks.processes())
        return replace(outcome, oom_kills=kills.number, oom_evidence=kills.evidence)


def _supervise(ranks: Ranks, liveness: Liveness, watch: Watch) -> Outcome:
    """Watch the ranks until all have ended, one has failed or they hang. Return the outcome."""
    while alive := ranks.alive():
        watch()
        if ranks.first_failed() is not None:
            break
        if evidence := liveness.hang_evidence(alive):
            return _stop_ranks(ranks, "hang", evidence)
        time.sleep(POLL_SECONDS)
    failed = ranks.first_failed()
    if failed is not None:
        ranks.wait(rank_processes.SETTLE_SECONDS)  # the others may end by themselves and write their errors
    watch()
    ends = parse_process_ends(ranks.ends())
    if failed is None:
        return Outcome("exited", ends)
    return _stop_ranks(ranks, "rank-failed", failure_evidence(next(end for end in ends if end.rank == failed)))


def _stop_ranks(ranks: Ranks, cause: Cause, evidence: str | None) -> Outcome:
    ranks.stop()
    return Outcome(cause, parse_process_ends(ranks.ends()), evidence)
