"""Launcher `slurm`: the nodes of one batch job. Slurm starts, limits and ends it; this watches and collects.

The job goes on when the platform is killed. `attach` then watches it to the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.contracts.execution import FIRST_NODE, NodeSource, Outcome, Request, Runtime, Submission, Watch
from levelfield.errors import UsageError
from levelfield.node.regular_files import read_regular
from levelfield.plan.environment import STAMP
from levelfield.run.launchers.node_content import node_content, request_for_nodes, secret_values
from levelfield.run.launchers.slurm.slurm_commands import SlurmJob, SubmissionError, find, state_of, submit
from levelfield.run.launchers.slurm.slurm_script import job_name, job_script
from levelfield.run.launchers.slurm.slurm_watch import JobWatch
from levelfield.run.runtimes.process_runtime import NodeFolders, NodeRuntime
from levelfield.rundir.directory import write_atomically, write_json
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

SCHEMA = "levelfield.engine/1"
SCRIPT = "nodes/job.sbatch"
Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class SlurmLauncher:
    """Launches all nodes as one job of Slurm. say: for sentences about the queue."""

    say: Say = _silent
    name = "slurm"

    def saying(self, say: Say) -> SlurmLauncher:
        """Return the same launcher with a place for its sentences."""
        return replace(self, say=say)

    def runtime(self, plan: Plan) -> Runtime:
        """Return the ranks of nodes that see this machine's folders. Slurm chooses the first node."""
        folders = NodeFolders(checkout(), _absolute(plan.implementation.folder), _absolute(plan.environment.python))
        return NodeRuntime(FIRST_NODE, folders)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """One job for all nodes. Pure. Raises UsageError for a site that cannot run it."""
        request = request_for_nodes(plan, paths, self.name, runtime)
        nodes = (node_content(plan, paths, request, node, plan.implementation.rests_on) for node in request.nodes)
        contents = {f"nodes/node{c['node_rank']}.json": _text(_expecting(plan, c)) for c in nodes}
        files = {SCRIPT: job_script(plan, paths), **contents}
        argv = ("sbatch", "--parsable", str(paths.root / SCRIPT))
        return replace(request, submissions=(Submission(job_name(plan.run_id), argv, files),))

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Submit the job and watch it until its end. An interrupt cancels it."""
        (submission,) = request.submissions
        root = root_of(request)
        try:
            for name, text in submission.files.items():
                (root / name).parent.mkdir(exist_ok=True)
                write_atomically(root / name, text)
            job = submit(submission.argv, secret_values(request))
            _record(root, job)
        except OSError as error:
            return Outcome("launch-error", (), f"{error.filename or 'the run directory'}: {error.strerror}")
        except SubmissionError as error:
            return self._after_refusal(request, watch, str(error))
        except KeyboardInterrupt:
            return self._ended_before_watch(request, watch)
        self.say(f"Slurm job {job.number} was submitted")
        return JobWatch(request, job, watch, self.say).until_end()

    def attach(self, request: Request, watch: Watch) -> Outcome:
        """Watch a job that a killed platform left, until its end. Raises UsageError where none is known."""
        job = job_of(request)
        if job is None:
            raise UsageError(
                f"{root_of(request).name}: found no job of Slurm, neither in nodes/engine.json nor by its name "
                f"{request.submissions[0].name}: it was not submitted; start the run again"
            )
        self.say(f"attached to Slurm job {job.number}")
        return JobWatch(request, job, watch, self.say).until_end()

    def _after_refusal(self, request: Request, watch: Watch, why: str) -> Outcome:
        """Slurm may have taken a job and not said so, when its answer was lost. Watch that job, else report."""
        job = find(request.submissions[0].name)
        if job is None or state_of(job).is_ended:  # Slurm may keep a job that it refused, as FAILED
            return Outcome("launch-error", (), why)
        _record(root_of(request), job)
        return JobWatch(request, job, watch, self.say).until_end()

    def _ended_before_watch(self, request: Request, watch: Watch) -> Outcome:
        """The user interrupted the submission: cancel what Slurm may have taken."""
        job = job_of(request)
        if job is None:
            return Outcome("interrupted", (), "interrupted before Slurm took the job")
        return JobWatch(request, job, watch, self.say).cancelled()


def root_of(request: Request) -> Path:
    """Return the run's folder."""
    return Path(request.events_dir).parent


def job_of(request: Request) -> SlurmJob | None:
    """Return the job of a run: as it was recorded, else by its name."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(read_regular(root_of(request) / "nodes" / "engine.json"))
        return SlurmJob(str(int(found["job"])), found["cluster"])
    return find(request.submissions[0].name)


def _record(root: Path, job: SlurmJob) -> None:
    """Write which job it is, before anything else: `--attach` finds it there."""
    submitted = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = {"schema": SCHEMA, "engine": "slurm", "job": job.number, "cluster": job.cluster, "submitted": submitted}
    write_json(root / "nodes" / "engine.json", content)


def _expecting(plan: Plan, content: dict[str, Any]) -> dict[str, Any]:
    """Return the work of a node with the places of what its digests are compared with."""
    folder = plan.environment.folder
    stamp = str(Path(folder) / STAMP) if folder else None
    return {
        **content,
        "expected": {**content["expected"], "folder": _absolute(plan.implementation.folder), "stamp": stamp},
    }


def _absolute(path: str) -> str:
    """Return a path that holds in any folder. A name without a folder is looked up on the node."""
    return str(Path(path).absolute()) if "/" in path else path


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
