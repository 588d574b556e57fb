"""The paths of all files of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """The folder runs/<utc>_<case>_<framework>_<vendor>_<id>/ and its files."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def request(self) -> Path:
        return self.root / "request.json"

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def telemetry(self) -> Path:
        return self.root / "telemetry.jsonl"

    @property
    def telemetry_folder(self) -> Path:
        """For a run whose nodes each have a sampler: node<k>.jsonl and node<k>.raw.jsonl, in place of `telemetry`."""
        return self.root / "telemetry"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def nodes(self) -> Path:
        """For each node: its work, the facts about its machine, and how its ranks ended."""
        return self.root / "nodes"

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

    @property
    def image(self) -> Path:
        """For a run in containers: the Dockerfile, and the log of the build if the run built the image."""
        return self.root / "image"

    @property
    def outcome(self) -> Path:
        """How each process ended: raw data, like the events."""
        return self.root / "outcome.json"

    @property
    def outcome_of_full_disk(self) -> Path:
        """What becomes the outcome where there is no room to write one. Only a run that goes on has it."""
        return self.root / ".outcome.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def report(self) -> Path:
        return self.root / "report.md"

    @property
    def reference(self) -> Path:
        """The reference that the run is compared with, copied at the start."""
        return self.root / "reference.json"

    @property
    def preflight(self) -> Path:
        """What the nodes and their process group reached before the training, where that was measured."""
        return self.root / "preflight.json"

    @property
    def certificate(self) -> Path:
        """The certificate that the plan names, copied at the start."""
        return self.root / "certificate.json"

    @property
    def capture(self) -> Path:
        """The tensors of one step, if they were requested."""
        return self.root / "capture"

    @property
    def weights(self) -> Path:
        return self.root / "weights"
