"""The paths of all files of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class _RunPath:
    """A file or a folder of a run, by its path from the run's own folder."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunPaths, owner: type[RunPaths]) -> Path:
        return run.root / self._path


@dataclass(frozen=True)
class RunPaths:
    """The folder runs/<utc>_<case>_<framework>_<vendor>_<id>/ and its files."""

    root: Path

    plan = _RunPath("plan.json")
    request = _RunPath("request.json")  # what a launcher is asked to start
    job = _RunPath("job.json")
    provenance = _RunPath("provenance.json")
    events = _RunPath("events")
    logs = _RunPath("logs")
    telemetry = _RunPath("telemetry.jsonl")
    # for a run whose nodes each have a sampler: node<k>.jsonl and node<k>.raw.jsonl, in place of `telemetry`
    telemetry_folder = _RunPath("telemetry")
    node_power = _RunPath("node_power.jsonl")  # what was read of the nodes' power, on this machine's clock
    nodes = _RunPath("nodes")  # for each node: its work, the facts about its machine, and how its ranks ended
    image = _RunPath("image")  # for a run in containers: the Dockerfile, and the log of the build if the run built it
    outcome = _RunPath("outcome.json")  # how each process ended: raw data, like the events
    # what becomes the outcome where there is no room to write one; only a run that goes on has it
    outcome_of_full_disk = _RunPath(".outcome.json")
    status = _RunPath("status.json")
    result = _RunPath("result.json")
    report = _RunPath("report.md")
    reference = _RunPath("reference.json")  # that the run is compared with, copied at the start
    certificate = _RunPath("certificate.json")  # that the plan names, copied at the start
    preflight = _RunPath("preflight.json")  # what nodes and process group reached before the training, where measured
    capture = _RunPath("capture")  # the tensors of one step, if they were requested
    weights = _RunPath("weights")  # after the last step, with --save-weights
    profile = _RunPath("profile")  # the steps that were recorded for --explain-step, as traces
    step_parts = _RunPath("step-parts.json")  # computed from them

    def node_telemetry(self, node: int) -> Path:
        """What the vendor's adapter read on a node, on that node's clock."""
        return self.telemetry_folder / f"node{node}.jsonl"

    def node_raw_telemetry(self, node: int) -> Path:
        """What the vendor's tools printed on a node."""
        return self.telemetry_folder / f"node{node}.raw.jsonl"

    def node_facts(self, node: int) -> Path:
        """What a node's agent found of its machine."""
        return self.nodes / f"node{node}.facts.json"

    def node_software(self, node: int) -> Path:
        """The versions that the vendor's adapter read in a node's facts."""
        return self.nodes / f"node{node}.software.json"
