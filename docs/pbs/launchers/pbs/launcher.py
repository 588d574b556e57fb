"""A launcher for PBS: one job for all nodes, which share this machine's folders."""

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.contracts.execution import FIRST_NODE, Outcome, Submission
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.node_content import node_content, request_for_nodes, secret_values, secrets_of
from levelfield.run.launchers.node_records import last_records, mark_ended_by_engine
from levelfield.run.runtimes.process_runtime import NodeRuntime

POLL_SECONDS = 0.5
SETTLE_SECONDS = 3.0  # after a first failure, for the other nodes' own words
END_SECONDS = 120.0  # for the end of a job after qdel
CAUSES = ("rank-failed", "hang", "node-differs", "device-taken")  # of a node's record, as they are
SCRIPT = """\
#!/bin/bash
#PBS -N levelfield
#PBS -l select={nodes}:ncpus=1
#PBS -l place=scatter
#PBS -q {queue}
#PBS -j oe
#PBS -o {root}/logs/job.log
first_node=$(getent ahostsv4 "$(head -n 1 "$PBS_NODEFILE")" | awk 'NR == 1 {{ print $1 }}')
export first_node
exec pbsdsh -- bash -c {command}
"""


class SiteLauncher:
    name = "pbs"
    own_keys = ("queue",)  # of the site's file: `own: {queue: gpu}`

    def runtime(self, plan):
        return NodeRuntime(FIRST_NODE)

    def request(self, plan, paths, runtime):
        request = request_for_nodes(plan, paths, self.name, runtime)
        works = [node_content(plan, paths, request, node, plan.implementation.rests_on) for node in request.nodes]
        files = {f"nodes/node{work['node_rank']}.json": json.dumps(work) for work in works}
        agent = checkout() / "platform/levelfield/node/node_agent.py"
        argv = [plan.launch.site.python or "python3", str(agent), "run", f"{paths.root}/nodes/node{{node_rank}}.json"]
        command = f'exec {shlex.join(argv)} --node-rank "$PBS_NODENUM" --first-node "$first_node"'
        queue = plan.launch.site.own.get("queue", "workq")
        script = SCRIPT.format(nodes=len(works), root=paths.root, command=shlex.quote(command), queue=queue)
        names = ",".join(["first_node", *sorted(secrets_of(plan))])
        sent = Submission(plan.run_id, ("qsub", "-v", names, str(paths.root / "job.pbs")), {"job.pbs": script, **files})
        return replace(request, submissions=(sent,))

    def execute(self, request, watch):
        (sent,) = request.submissions
        for name, text in sent.files.items():
            path = Path(request.events_dir).parent / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        variables = {**os.environ, **secret_values(request), "first_node": ""}
        done = subprocess.run(sent.argv, env=variables, capture_output=True, text=True)
        if done.returncode:
            return Outcome("launch-error", (), " ".join(done.stderr.split()))
        job = done.stdout.strip()
        try:
            cause, evidence = self._watched(request, job, watch)
        except KeyboardInterrupt:
            cause, evidence = "interrupted", "interrupted by the user"
        if cause != "exited":
            self._end(job)
        watch()
        return outcome(request, cause, evidence)

    def _watched(self, request, job, watch):
        """Return the first cause that ends the run, and its evidence."""
        liveness = None
        while True:
            watch()
            records = last_records(request)
            if all(record.cause == "exited" for record in records):
                return "exited", None
            if any(record.cause not in (None, "exited") for record in records):
                time.sleep(SETTLE_SECONDS)
                return first_cause(last_records(request))
            state = state_of(job)
            if state == "R":
                liveness = liveness or Liveness(request)
                if evidence := liveness.hang_evidence([]):  # each node watches its own ranks' heartbeats
                    return "hang", evidence
            if state == "F" and last_records(request) == records:
                return "node-lost", f"PBS job {job} ended, and a node wrote no last record"
            time.sleep(POLL_SECONDS)

    def _end(self, job):
        subprocess.run(["qdel", job], capture_output=True)
        deadline = time.monotonic() + END_SECONDS
        while state_of(job) != "F" and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def state_of(job):
    """Return PBS's letter for a job's state. None: PBS does not answer, and nobody knows."""
    done = subprocess.run(["qstat", "-x", "-f", job], capture_output=True, text=True)
    lines = (line.split("=") for line in done.stdout.splitlines() if "job_state =" in line)
    return next((right.strip() for _, right in lines), None)


def first_cause(records):
    """Return the cause that explains the others: a rank that failed comes before nodes that were stopped."""
    own = [record for record in records if record.cause not in (None, "exited", "stopped")]
    if not own:
        return "cancelled", "the nodes were stopped from outside"
    return own[0].cause if own[0].cause in CAUSES else "launch-error", f"{own[0].name}: {own[0].evidence}"


def outcome(request, cause, evidence):
    """Return the outcome with the end of each node and rank, as the nodes wrote them."""
    records = last_records(request)
    if cause != "exited":
        failed = [record for record in records if record.cause == "rank-failed"]
        others = [mark_ended_by_engine(record, signal.SIGTERM) for record in records]
        records = [record if record in failed else other for record, other in zip(records, others, strict=True)]
    ends = tuple(end for record in records for end in record.ends)
    return Outcome(cause, ends, evidence, nodes=tuple(record.end for record in records))
