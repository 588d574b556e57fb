"""What a site's file says about Slurm, against Slurm: its commands, a test submission, and a job of a second."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from levelfield.contracts.command import run_bounded
from levelfield.contracts.execution import Say
from levelfield.run.launchers.site_findings import (
    PROBE_SCRIPT,
    SiteFinding,
    folder_finding,
    interface_findings,
    missing_finding,
    ok_finding,
    parse_probe_answer,
    unknown_finding,
)
from levelfield.run.launchers.slurm.slurm_commands import command_environment, run_job
from levelfield.run.launchers.slurm.slurm_launcher import OPTION_FIELDS, PLATFORM_OPTIONS
from levelfield.specs.site import LaunchPlan, Site, SlurmSite
from levelfield.user_folders import user_name

ANSWER_SECONDS = 30.0  # the time limit of a command of Slurm
JOB_SECONDS = 90.0  # the time limit of the job of a second, with its wait for a node
_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")


def slurm_findings(launch: LaunchPlan, say: Say) -> Iterator[SiteFinding]:
    """Try everything that a run would need. Without Slurm's commands or its controller nothing more is tried."""
    site, slurm = launch.site, launch.site.slurm
    if missing_commands := [name for name in _COMMANDS if shutil.which(name) is None]:
        yield missing_finding(
            "commands", f"{', '.join(missing_commands)}: not in PATH", "start this on a login node of the cluster"
        )
        return
    yield ok_finding("commands", f"{', '.join(_COMMANDS)} are there")
    answer = _command_output("scontrol", "ping")
    if answer is None or "is UP" not in answer:
        yield missing_finding(
            "controller", _one_line(answer or "no answer"), "`scontrol ping` shows when it answers again"
        )
        return
    yield ok_finding("controller", _one_line(answer))
    if _command_output("sacct", "--noheader", "--parsable2", "--starttime=now-1hours", "--format=JobID") is None:
        advice = "a job's end is then known for some minutes only, which a run that is watched does not need"
        yield unknown_finding("accounting", "sacct has no accounting", advice)
    else:
        yield ok_finding("accounting", "sacct answers")
    for option in slurm.options:
        if option.partition("=")[0] in PLATFORM_OPTIONS:
            yield missing_finding("options", f"{option} is set by the platform", "leave it out of slurm.options")
    yield from _minutes_findings(slurm)
    submission = _test_submission(slurm)
    yield submission
    if slurm.container == "pyxis":
        if "--container-image" in (_command_output("srun", "--help") or ""):
            yield ok_finding("container", "srun has pyxis' options")
        else:
            advice = "install pyxis, or set slurm.container to apptainer"
            yield missing_finding("container", "srun has no --container-image", advice)
    if submission.word == "ok":
        yield from _job_findings(site, say)


def _minutes_findings(slurm: SlurmSite) -> Iterator[SiteFinding]:
    """Yield whether the partition allows the site's minutes: Slurm never starts a job that requests more."""
    answer = _command_output("scontrol", "--oneliner", "show", "partition") if slurm.minutes else None
    partitions = [dict(word.partition("=")[::2] for word in line.split()) for line in (answer or "").splitlines()]
    names = (slurm.partition or "").split(",")
    limits: dict[str, float | None] = {}  # None: UNLIMITED
    for fields in partitions:
        if fields.get("PartitionName") in names or (not slurm.partition and fields.get("Default") == "YES"):
            limit = None  # such as 1-12:00:00
            if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", fields.get("MaxTime", "")):
                days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
                limit = (days * 24 + hours) * 60 + minutes + seconds / 60
            limits[fields["PartitionName"]] = limit
    if slurm.minutes is None or not limits:
        return
    if any(limit is None or slurm.minutes <= limit for limit in limits.values()):
        yield ok_finding("minutes", f"{slurm.minutes} minutes are within the limit of partition {', '.join(limits)}")
        return
    limits_text = ", ".join(f"{name} {limit:g}" for name, limit in limits.items())
    message, advice = (
        f"slurm.minutes is {slurm.minutes}, and the partition allows: {limits_text}",
        "lower it, or name another one",
    )
    # a qos may raise the partition's limit
    yield unknown_finding("minutes", message, advice) if slurm.qos else missing_finding("minutes", message, advice)


def _test_submission(slurm: SlurmSite) -> SiteFinding:
    """Return whether Slurm would take a job: partition, account, qos, constraint, time and resources at once."""
    argv = ["sbatch", "--test-only", *_job_options(slurm), "--wrap=true"]
    try:
        completed = run_bounded(argv, ANSWER_SECONDS, command_environment({}))
    except (OSError, subprocess.SubprocessError) as error:
        return unknown_finding("job", f"sbatch: {error}")
    answer = _one_line(completed.stderr or completed.stdout).replace("sbatch: ", "").replace("error: ", "")
    if completed.returncode:
        keys = ", ".join(f"slurm.{name}" for name in (*OPTION_FIELDS, "gres", "options") if getattr(slurm, name))
        advice = f"correct {keys} in the site's file" if keys else "name what it asks for, such as slurm.partition"
        return missing_finding("job", f"Slurm refuses a job of one node: {answer}", advice)
    return ok_finding("job", f"Slurm takes a job: {answer}")


def _job_options(slurm: SlurmSite) -> Iterator[str]:
    yield from (f"--{name}={getattr(slurm, name)}" for name in OPTION_FIELDS if getattr(slurm, name))
    if slurm.gres:
        yield f"--gres={slurm.gres.replace('{devices}', '1')}"
    yield from ("--nodes=1", "--time=1", *slurm.options)


def _job_findings(site: Site, say: Say) -> Iterator[SiteFinding]:
    """Yield what a job of a second sees on a node: modules, Python, shared and local folder, interface, apptainer."""
    folder = Path(site.shared or Path.cwd())
    if not folder.is_dir():
        advice = "correct `shared` in the site's file, or make the folder"
        yield missing_finding("shared", f"{folder} is no folder on this machine", advice)
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix=".levelfield-check-", dir=folder))
            shared_file = Path(file.name)
            file.write(shared_file.name + "\n")  # the node must be able to read it
            file.flush()
        except OSError as error:
            advice = "correct `shared` in the site's file, or the folder's rights"
            yield missing_finding("shared", f"{folder} cannot be written here: {error.strerror}", advice)
            return
        python, load_script = site.python or "python3", ""
        if site.modules:  # as a run loads them. The shell's variable `said` is empty, or has the reason of a failure
            load = shlex.join(("module", "load", *site.modules))
            load_script = "type module >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1; said=; "
            load_script += f"{load} >/dev/null 2>&1 || said=$({load} 2>&1 | tr '\\n' ' '); "
        version_script = f'{shlex.quote(python)} -c "import sys; print(sys.version_info >= (3, 8))" || echo'
        script = f'hostname; {load_script}{version_script}; cat "$1" || echo; type apptainer; echo "modules $said"'
        local_folder = (site.slurm.local_folder or "").replace("{user}", user_name())
        if local_folder or site.interface:
            script += f"; {shlex.join((python, '-c', PROBE_SCRIPT, local_folder or str(folder), ''))} || true"
        options = [*_job_options(site.slurm), "--ntasks=1", "--immediate=60", "--input=none", "--quiet"]
        command = ("bash", "-c", script, "bash", str(shared_file))
        try:
            completed = run_job(options, command, JOB_SECONDS, say)
        except (OSError, subprocess.SubprocessError):
            yield unknown_finding(
                "node", f"no node was free within {JOB_SECONDS:g} s", "try again, or look at `squeue`"
            )
            return
    lines = completed.stdout.splitlines()
    if len(lines) >= 3:
        yield from _node_findings(site, lines, python, shared_file, local_folder)
    else:
        yield unknown_finding(
            "node", _one_line(completed.stderr or "a job of a second printed nothing"), "look at `squeue` and `sinfo`"
        )


def _node_findings(
    site: Site, lines: list[str], python: str, shared_file: Path, local_folder: str
) -> Iterator[SiteFinding]:
    """Yield what the node has: Python, modules, interface and the folders that the site's file names."""
    host = lines[0][:64]
    if lines[1].strip() == "True":
        yield ok_finding("node", f"{host} has {python} of 3.8 or newer")
    else:
        advice = "give `python` in the site's file, or `modules`"
        yield missing_finding("node", f"{host} has no {python} of 3.8 or newer", advice)
    if lines[2].strip() == shared_file.name:
        yield ok_finding("shared", f"{host} sees {shared_file.parent}")
    else:
        advice = "give `shared` in the site's file: a folder that every node sees at the same path"
        yield missing_finding("shared", f"{host} does not see {shared_file.parent}", advice)
    if site.slurm.container == "apptainer" and not any(line.startswith("apptainer") for line in lines[3:]):
        yield missing_finding("container", f"{host} has no apptainer", "install it, or load its module with `modules`")
    load_messages = [line.removeprefix("modules ") for line in lines[3:] if line.startswith("modules ")]
    if site.modules and load_messages:
        names, reason = " ".join(site.modules), _one_line(load_messages[0])
        failure = missing_finding(
            "modules", f"{host} does not load {names}: {reason}", "correct `modules` in the site's file"
        )
        yield failure if reason else ok_finding("modules", f"{host} loads {names}")
    if not (local_folder or site.interface):
        return
    answer = parse_probe_answer(lines[-1])
    if answer is None:
        yield unknown_finding("node", f"{host}: {python} told nothing of interface and local folder", "try it there")
        return
    yield from interface_findings(f"interface of {host}", site.interface, answer)
    if local_folder:
        yield folder_finding(f"local folder of {host}", local_folder, "slurm.local_folder", answer)


def _command_output(*argv: str) -> str | None:
    """Return what a command of Slurm prints; None where it fails."""
    try:
        completed = run_bounded(argv, ANSWER_SECONDS, command_environment({}))
    except (OSError, subprocess.SubprocessError):
        return None
    return None if completed.returncode else completed.stdout


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
