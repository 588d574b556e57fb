"""Launcher `slurm`: the nodes of one batch job. Slurm starts, limits and ends it; this watches and collects.

The job goes on when the platform is killed. `attach` then watches it to the same end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.contracts.execution import (
    FIRST_NODE,
    NodesNotReady,
    NodeSource,
    Outcome,
    Request,
    Runtime,
    Say,
    Submission,
    Watch,
)
from levelfield.errors import UsageError
from levelfield.node.regular_files import read_regular
from levelfield.plan.environment import STAMP
from levelfield.run.launchers.node_content import node_content, request_for_nodes, secret_values, work_files
from levelfield.run.launchers.slurm.slurm_commands import (
    ANSWER_SECONDS,
    SUBMIT_SECONDS,
    SlurmJob,
    SubmissionError,
    find_job,
    find_new_job,
    job_state,
    run_job,
    submit,
)
from levelfield.run.launchers.slurm.slurm_watch import INTERRUPTED, JobWatch
from levelfield.run.runtimes.process_runtime import (
    NodeFolders,
    NodeRuntime,
    ProcessRuntime,
    require_launch,
    worker_pythonpath,
)
from levelfield.rundir.directory import write_atomically, write_json
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.short_names import short_digest
from levelfield.user_folders import user_name

SCHEMA = "levelfield.engine/1"
SCRIPT_FILE = "nodes/job.sbatch"
JOB_NAME_FORMAT = "levelfield.{}"  # has the run id; a job whose number was lost is found by it
AGENT_PATH = ("platform", "levelfield", "node", "node_agent.py")
# Other characters have a meaning to sbatch, to a shell or in a list of mounts.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.+=@/-]*")
PLATFORM_OPTIONS = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--requeue", "--no-requeue", "--output", "--error", "--job-name",
    "--chdir", "--array", "--wrap", "--export", "--parsable", "--wait", "--test-only", "--open-mode",
)  # fmt: skip
AMD_DEVICE_FILE = "/dev/kfd"  # a container with it has AMD accelerators
FREE_NODE_SECONDS = 60  # a short command waits at most so long for a free node
PROBE_MINUTES = 5  # the time limit of that command
NO_LIMITS_OPTION = "--propagate=NONE"  # a login node's limit of locked memory would end RDMA on the nodes
OPTION_FIELDS = ("partition", "account", "qos", "constraint", "reservation")  # of SlurmSite; options of sbatch, too
_CORE_OPTIONS = {"--cpus-per-task", "--cpus-per-gpu"}


@dataclass(frozen=True)
class SlurmLauncher:
    """Launches all nodes as one job of Slurm. say: gets sentences about the queue."""

    say: Say = lambda sentence: None
    name = "slurm"

    def saying(self, say: Say) -> SlurmLauncher:
        """Return the launcher that reports by `say`."""
        return replace(self, say=say)

    def runtime(self, plan: Plan) -> Runtime:
        """Return the runtime of nodes that see this machine's folders. Slurm chooses the first node."""
        staged = staged_folder(plan)
        python = str(staged / "bin/python") if staged else _absolute_path(plan.environment.python)
        folders = NodeFolders(checkout(), _absolute_path(plan.implementation.folder), python)
        return SlurmRuntime(FIRST_NODE, folders)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """Return the request with one job for all nodes. No side effect. Raises UsageError for a site that cannot run
        it."""
        request = request_for_nodes(plan, paths, self.name, runtime)
        files, contents = {SCRIPT_FILE: job_script(plan, paths)}, []
        for node in request.nodes:
            content = node_content(plan, paths, request, node, plan.implementation.rests_on)
            staged, folder, digest = staged_folder(plan), plan.environment.folder, plan.environment.digest
            content["expected"]["folder"] = _absolute_path(plan.implementation.folder)
            content["expected"]["stamp"] = str((staged or Path(folder)) / STAMP) if folder else None
            if staged:
                content["stage"] = {"archive": str(_staged_archive(plan)), "folder": str(staged), "digest": digest}
            contents.append(content)
        files |= {f"nodes/{name}": text for name, text in work_files(contents).items()}
        argv = ("sbatch", "--parsable", str(paths.root / SCRIPT_FILE))
        return replace(request, submissions=(Submission(JOB_NAME_FORMAT.format(plan.run_id), argv, files),))

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Submit the job and watch it until its end. An interrupt cancels it."""
        self.say(f"submitting the job to Slurm: at most {SUBMIT_SECONDS:g} s")
        try:
            job = _submit_job(request, self.say)
        except KeyboardInterrupt:
            if submitted_job := find_new_job(request.submissions[0].name, self.say):
                return JobWatch(request, submitted_job, watch, self.say).cancel_and_wait(INTERRUPTED)
            return Outcome("interrupted", (), "interrupted before Slurm took the job")
        if isinstance(job, Outcome):
            return job
        job_watch = JobWatch(request, job, watch, self.say)
        submitted_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        record = {"schema": SCHEMA, "engine": "slurm", "job": job.number, "cluster": job.cluster}
        try:
            write_json(Path(request.events_dir).parent / "nodes" / "engine.json", {**record, "submitted": submitted_at})
        except OSError as error:  # without a record no later command would end the job
            evidence = (
                f"{error.filename or 'the run directory'}: {error.strerror}; Slurm job {job.number} was cancelled"
            )
            return job_watch.cancel_and_wait(("launch-error", evidence))
        except KeyboardInterrupt:
            return job_watch.cancel_and_wait(INTERRUPTED)
        self.say(f"Slurm job {job.number} was submitted")
        return job_watch.watch_until_end()

    def remaining_work(self, request: Request) -> str | None:
        """Return the state of a job that a killed platform left; None where it has ended, or none is found."""
        job = find_submitted_job(request)
        if job is None or (state := job_state(job)).is_ended:
            return None
        return f"Slurm job {job.number} is {state.word}" if state.word else f"Slurm says nothing of job {job.number}"

    def attach(self, request: Request, watch: Watch) -> Outcome:
        """Watch a job that a killed platform left, until its end. Raises UsageError where no job is found."""
        job = find_submitted_job(request)
        if job is None:
            run_id = Path(request.events_dir).parent.name
            raise UsageError(
                f"{run_id}: found no job of Slurm, neither in nodes/engine.json nor by its name "
                f"{request.submissions[0].name}: it was not submitted; start the run again"
            )
        self.say(f"attached to Slurm job {job.number}")
        return JobWatch(request, job, watch, self.say).watch_until_end()


class SlurmRuntime(NodeRuntime):
    """The runtime on a job's nodes. A short command, such as the probe of a peak, is a job of its own on one node."""

    def __init__(self, first_node_address: str, folders: NodeFolders) -> None:
        super().__init__(first_node_address, folders)
        self._say: Say = lambda sentence: None

    @contextmanager
    def in_use(self, plan: Plan, say: Say) -> Iterator[SlurmRuntime]:
        """Raises NodesNotReady where the environment cannot be packed for the nodes' own disks."""
        self._say = say
        with super().in_use(plan, say):
            if staged_folder(plan) and not _staged_archive(plan).is_file():
                say(f"packing {plan.environment.folder} once, for the nodes' own disks")
                _pack_environment(_staged_archive(plan))
            yield self

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        """Raises OSError where no command runs, and SubprocessError."""
        if plan.runtime == "docker":
            raise OSError("no command runs in the container outside of the run")
        variables = (f"{name}={value}" for name, value in {**worker_pythonpath(checkout()), **environment}.items())
        command = shlex.join(("exec", "env", *variables, *map(_absolute_path, argv)))
        script = "\n".join([*_module_lines(require_launch(plan).site.modules), command])
        options = (  # for one node of the run's kind, which has to be free soon
            *("--nodes=1", "--ntasks=1", f"--immediate={FREE_NODE_SECONDS}", f"--time={PROBE_MINUTES}", "--quiet"),
            *("--chdir=/", "--input=none", "--cpu-bind=none", *_resource_options(plan)),
        )
        completed = run_job(options, ("bash", "-c", script), seconds, self._say)
        completed.check_returncode()
        return completed.stdout

    def identity(self, plan: Plan) -> dict[str, Any]:
        return ProcessRuntime().identity(plan)  # the nodes see this machine's environment


def staged_folder(plan: Plan) -> Path | None:
    """Return the environment's folder on each node's own disk; None where ranks import from the shared one."""
    site = require_launch(plan).site
    if site.slurm.local_folder is None or site.python or not plan.environment.folder or plan.runtime == "docker":
        return None
    folder = Path(site.slurm.local_folder.replace("{user}", user_name()))
    return folder / f"{plan.environment.name}-{short_digest(plan.environment.digest, 16)}"


def _staged_archive(plan: Plan) -> Path:
    """Return the archive that every node unpacks. It lies within the environment, and is deleted with it."""
    return Path(str(plan.environment.folder)).absolute() / f"staged-{short_digest(plan.environment.digest, 16)}.tar"


def _pack_environment(archive: Path) -> None:
    """Write an environment's folder into one archive: a file server sends one file faster. Raises NodesNotReady."""
    unfinished, folder = archive.with_name(f"{archive.name}.{os.getpid()}.part"), archive.parent
    stamp = f"./{STAMP}"
    try:
        with tarfile.open(unfinished, "w") as tar:
            tar.add(folder, ".", filter=lambda m: None if m.name == stamp or m.name.startswith("./staged-") else m)
            tar.add(folder / STAMP, stamp)  # the last one: an archive that was cut has none
        unfinished.replace(archive)
    except OSError as error:
        reason = f"{error.filename or archive}: {error.strerror}; leave slurm.local_folder out, or free some space"
        raise NodesNotReady("environment", reason, ()) from None
    finally:
        unfinished.unlink(missing_ok=True)


def probed_nodes(plan: Plan) -> str:
    """Return the name of the kind of nodes that a short command runs on: one peak holds for all nodes of a kind."""
    slurm, hardware = require_launch(plan).site.slurm, plan.hardware
    options = filter(None, (slurm.partition, slurm.constraint, slurm.gres, *slurm.options))
    cores = "whole" if slurm.exclusive else f"{hardware.devices_per_node} x {plan.tuning.threads}"
    return " ".join(("a Slurm node,", *options, cores))


def shared_nodes_reason(plan: Plan) -> str | None:
    """Return why Slurm may place two runs on one node, where both would take its first devices; None for whole ones."""
    if require_launch(plan).site.slurm.exclusive:
        return None
    return "slurm.exclusive is false in the site's file, so that two jobs may share a node; set it to true"


def _submit_job(request: Request, say: Say) -> SlurmJob | Outcome:
    """Write the files of the job and submit it. Return the job, or how the run ended without one."""
    (submission,) = request.submissions
    root = Path(request.events_dir).parent
    try:
        for name, text in submission.files.items():
            (root / name).parent.mkdir(exist_ok=True)
            write_atomically(root / name, text)
        return submit(submission.argv, secret_values(request))
    except OSError as error:
        return Outcome("launch-error", (), f"{error.filename or 'the run directory'}: {error.strerror}")
    except SubmissionError as error:  # Slurm may have taken the job, and the answer was lost
        say(f"sbatch failed; asking Slurm whether it has the job: at most {2 * ANSWER_SECONDS:g} s")
        job = find_job(submission.name)
        if job is None or job_state(job).is_ended:  # Slurm may keep a job that it refused, as FAILED
            return Outcome("launch-error", (), str(error))
        return job


def find_submitted_job(request: Request) -> SlurmJob | None:
    """Return the job of a run, as it was recorded or else by its name; None where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(read_regular(Path(request.events_dir).parent / "nodes" / "engine.json", "engine"))
        return SlurmJob(str(int(content["job"])), content["cluster"])
    return find_job(request.submissions[0].name)


def _absolute_path(path: str) -> str:
    """Return a path that holds in any folder. A name without a folder is looked up on the node."""
    return str(Path(path).absolute()) if "/" in path else path


def job_script(plan: Plan, paths: RunPaths) -> str:
    """Return the text of the batch script: all of it follows from the plan. Raises UsageError for what cannot work.

    Slurm starts it on the first node. It resolves that node's address, and srun starts the node's part on each.
    """
    site, nodes, log = require_launch(plan).site, plan.hardware.nodes, paths.logs / "job.log"
    if site.shared and not paths.root.resolve().is_relative_to(Path(site.shared).resolve()):
        raise UsageError(
            f"--runs: found {paths.root.parent}, expected a folder below {site.shared}, which every node sees "
            "(`shared` in the site's file)"
        )
    for path in _needed_folders(plan, paths):
        if not _PLAIN_PATH.fullmatch(path):
            raise UsageError(f"folder {path!r}: found a character that Slurm changes, expected letters, digits, _.+=@-")
    options = (
        f"--job-name={JOB_NAME_FORMAT.format(plan.run_id)}",
        *(f"--nodes={nodes}", "--ntasks-per-node=1", "--no-requeue"),
        *("--export=ALL", f"--chdir={paths.root}", f"--output={log}", f"--error={log}", "--open-mode=append"),
        *(NO_LIMITS_OPTION, *([f"--time={site.slurm.minutes}"] if site.slurm.minutes else [])),
        *_resource_options(plan),
    )
    command = (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=0"),
        *(NO_LIMITS_OPTION, "--input=none", "--cpu-bind=none", *_container_command(plan, paths)),
        *(site.python or "python3", str(checkout().joinpath(*AGENT_PATH)), "run"),
        *(f"{paths.nodes}/node{{node_rank}}.json", "--first-node"),
    )
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", *_module_lines(site.modules)]
    if site.interface:  # the collectives use it, so the first node is reached there too
        show_address = f"ip -oneline -4 address show dev {shlex.quote(site.interface)}"
        lines += [f"first_node=$({show_address} | awk '{{print $4; exit}}')", "first_node=${first_node%/*}"]
    else:
        lines += [
            'name=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            'first_node=$(scontrol --oneliner show node "$name" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
        ]
    lines.append('[ -n "$first_node" ] || { echo "levelfield: the first node has no address" >&2; exit 1; }')
    return "\n".join([*lines, f'{shlex.join(command)} "$first_node"', "exit $?", ""])


def _resource_options(plan: Plan) -> Iterator[str]:
    """Yield the options that request nodes: those of the site's file, and the devices or cores of each node.

    Raises UsageError for an option that the platform sets, and a placeholder that has no value.
    """
    slurm = require_launch(plan).site.slurm
    yield from (f"--{name}={getattr(slurm, name)}" for name in OPTION_FIELDS if getattr(slurm, name))
    if slurm.gres:
        gres = slurm.gres.replace("{devices}", str(plan.hardware.devices_per_node))
        if "{" in gres or "}" in gres:
            raise UsageError(f"site, slurm.gres: found '{slurm.gres}', expected no placeholder but {{devices}}")
        yield f"--gres={gres}"
    names = {option.partition("=")[0] for option in slurm.options}
    if slurm.exclusive:
        yield "--exclusive"
    elif plan.hardware.is_host and not names & _CORE_OPTIONS:  # its devices are shares of its cores
        yield f"--cpus-per-task={plan.hardware.devices_per_node * (plan.tuning.threads or 1)}"
    for option in slurm.options:
        if option.partition("=")[0] in PLATFORM_OPTIONS:
            raise UsageError(
                f"site, slurm.options: found '{option}', expected no option that the platform sets: "
                f"{', '.join(PLATFORM_OPTIONS)}"
            )
        yield option


def _module_lines(names: Sequence[str]) -> Iterator[str]:
    """Return lines that load environment modules. Without them the job ends, as it would train with other libraries."""
    if names:
        yield "type module >/dev/null 2>&1 || . /etc/profile"  # a job's shell is no login shell
        yield f'{shlex.join(("module", "load", *names))} || {{ echo "levelfield: module load failed" >&2; exit 1; }}'


def _container_command(plan: Plan, paths: RunPaths) -> tuple[str, ...]:
    """Return what starts the site's container on each node. Raises UsageError where the site has none."""
    if plan.runtime != "docker":
        return ()
    slurm = require_launch(plan).site.slurm
    if slurm.container == "none" or slurm.image is None:
        raise UsageError(
            f"--runtime docker: found slurm.container '{slurm.container}' and slurm.image {slurm.image!r} in the "
            "site's file, expected pyxis or apptainer, and an image"
        )
    folders = ",".join(f"{folder}:{folder}" for folder in _needed_folders(plan, paths))
    if slurm.container == "pyxis":
        return (f"--container-image={slurm.image}", f"--container-mounts={folders}", "--no-container-mount-home")
    # apptainer's options that bring the driver's libraries; the devices' files are those of the node
    options = plan.container.options if plan.container else None
    nvidia = ("--nv",) if options and options.request_driver == "nvidia" else ()
    amd = ("--rocm",) if options and AMD_DEVICE_FILE in options.device_nodes else ()
    return ("apptainer", "exec", "--no-home", *nvidia, *amd, f"--bind={folders}", slurm.image)


def _needed_folders(plan: Plan, paths: RunPaths) -> list[str]:
    """Return the folders of the host that the training needs, in a container at the same path."""
    corpus = [str(Path(plan.corpus.prefix).absolute().parent)] if plan.corpus.prefix else []
    return [str(paths.root), str(checkout()), *corpus]
