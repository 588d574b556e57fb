"""The batch script of a Slurm job. Every line is a function of the plan; nothing depends on the user's shell.

Slurm starts the script on the first node. It resolves that node's address, and srun starts the node's part on each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import UsageError
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import SlurmSite

AGENT = ("platform", "levelfield", "node", "node_agent.py")
# What sbatch takes from a name of a file, and what a shell or a list of mounts would read otherwise.
_PLAIN = re.compile(r"/[A-Za-z0-9_.+=@/-]*")
_OWN_OPTIONS = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--requeue", "--no-requeue", "--output", "--error", "--job-name",
    "--chdir", "--array", "--wrap", "--export", "--parsable", "--wait", "--test-only", "--open-mode",
)  # fmt: skip


def job_name(run_id: str) -> str:
    """Return the name of a run's job. It finds a job whose number was lost."""
    return f"levelfield.{run_id}"


def job_script(plan: Plan, paths: RunPaths) -> str:
    """Return the text of the batch script. Raises UsageError for a site or a folder that cannot work."""
    _refuse_paths(plan, paths)
    site, nodes = launch_of(plan).site, plan.hardware.nodes
    directives = (f"#SBATCH {text}" for text in _directives(plan, paths))
    modules = [shlex.join(("module", "load", *site.modules))] if site.modules else []
    command = (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=0"),
        *("--input=none", "--cpu-bind=none", *_container(plan, paths)),
        *(site.python or "python3", str(checkout().joinpath(*AGENT)), "run"),
        *(f"{paths.nodes}/node{{node_rank}}.json", "--first-node"),
    )
    lines = ["#!/bin/bash", *directives, "", *modules, *_first_node(site.interface)]
    return "\n".join([*lines, f'{shlex.join(command)} "$first_node"', "exit $?", ""])


def _directives(plan: Plan, paths: RunPaths) -> Iterator[str]:
    slurm, log = launch_of(plan).site.slurm, paths.logs / "job.log"
    yield from (f"--job-name={job_name(plan.run_id)}", f"--nodes={plan.hardware.nodes}", "--ntasks-per-node=1")
    yield from ("--no-requeue", "--export=ALL", f"--chdir={paths.root}", f"--output={log}", f"--error={log}")
    yield "--open-mode=append"
    named = {name: getattr(slurm, name) for name in ("partition", "account", "qos", "constraint", "reservation")}
    yield from (f"--{name}={value}" for name, value in named.items() if value)
    if slurm.minutes:
        yield f"--time={slurm.minutes}"
    if slurm.gres:
        yield f"--gres={_gres(slurm.gres, plan.hardware.devices_per_node)}"
    if slurm.exclusive:
        yield "--exclusive"
    elif cores := _cores(plan):
        yield f"--cpus-per-task={cores}"
    yield from _further(slurm)


def _gres(text: str, devices: int) -> str:
    """Return the resources of a node. Raises UsageError for a placeholder that has no value."""
    filled = text.replace("{devices}", str(devices))
    if "{" in filled or "}" in filled:
        raise UsageError(f"site, slurm.gres: found '{text}', expected no placeholder but {{devices}}")
    return filled


def _cores(plan: Plan) -> int | None:
    """Return the cores of a node whose devices are shares of it; None where the site's defaults are left alone."""
    if not plan.hardware.is_host or any(_name(each) in _OF_CORES for each in launch_of(plan).site.slurm.options):
        return None
    return plan.hardware.devices_per_node * (plan.tuning.threads or 1)


_OF_CORES = ("--cpus-per-task", "--cpus-per-gpu")


def _further(slurm: SlurmSite) -> Iterator[str]:
    """Return the site's further options. Raises UsageError for one that the script itself sets."""
    for option in slurm.options:
        if _name(option) in _OWN_OPTIONS:
            raise UsageError(
                f"site, slurm.options: found '{option}', expected no option that the platform sets: "
                f"{', '.join(_OWN_OPTIONS)}"
            )
        yield option


def _name(option: str) -> str:
    return option.partition("=")[0]


def _first_node(interface: str | None) -> Iterator[str]:
    """Return lines that set `first_node`: the address on the interface of the collectives, else Slurm's own."""
    if interface:
        yield f"first_node=$(ip -oneline -4 address show dev {shlex.quote(interface)} | awk '{{print $4; exit}}')"
        yield "first_node=${first_node%/*}"
    else:
        yield 'name=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        yield 'first_node=$(scontrol --oneliner show node "$name" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")'
    yield '[ -n "$first_node" ] || { echo "levelfield: the first node has no address" >&2; exit 1; }'


def _container(plan: Plan, paths: RunPaths) -> tuple[str, ...]:
    """Return what starts the site's container on each node. Raises UsageError where the site has none."""
    if plan.runtime != "docker":
        return ()
    slurm = launch_of(plan).site.slurm
    if slurm.container == "none" or slurm.image is None:
        raise UsageError(
            f"--runtime docker: found slurm.container '{slurm.container}' and slurm.image {slurm.image!r} in the "
            "site's file, expected pyxis or apptainer, and an image"
        )
    folders = ",".join(f"{folder}:{folder}" for folder in _folders(plan, paths))
    if slurm.container == "pyxis":
        return (f"--container-image={slurm.image}", f"--container-mounts={folders}", "--no-container-mount-home")
    return ("apptainer", "exec", "--no-home", f"--bind={folders}", slurm.image)


def _folders(plan: Plan, paths: RunPaths) -> list[str]:
    """Return the folders of the host that the training needs, in a container at the same path."""
    corpus = [str(Path(plan.corpus.prefix).absolute().parent)] if plan.corpus.prefix else []
    return [str(paths.root), str(checkout()), *corpus]


def _refuse_paths(plan: Plan, paths: RunPaths) -> None:
    """Raises UsageError for a run's folder that the nodes do not see, or whose name sbatch would change."""
    shared = launch_of(plan).site.shared
    if shared and not paths.root.resolve().is_relative_to(Path(shared).resolve()):
        raise UsageError(
            f"--runs: found {paths.root.parent}, expected a folder below {shared}, which every node sees (`shared` in "
            "the site's file)"
        )
    for path in _folders(plan, paths):
        if not _PLAIN.fullmatch(path):
            raise UsageError(f"folder {path!r}: found a character that Slurm changes, expected letters, digits, _.+=@-")
