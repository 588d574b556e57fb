"""The report of a preflight: what each node and the process group reached, and which node is out of line."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import Document, Value

PreflightWord = Literal["in line", "not compared", "out of line", "incomplete", "failed"]
# slow, fast: a rate against the other nodes. differ: two groups of nodes, and either may be the odd one. others: other
# programs use a device or the cores. setting: of the system: nodes differ in it, or it limits RDMA.
FindingKind = Literal["slow", "fast", "differ", "missing", "wrong", "others", "setting"]
Fact = str | int | float | bool | None
# Kinds that do not make a node out of line: a preflight notes them, and --quiet-machine refuses a run for `others`.
REMARK_KINDS: tuple[FindingKind, ...] = ("others", "setting")
LONGEST_SENTENCE = 500


class Rate(Value):
    """A rate of a node. value: the median of the repeats; None with the reason. spread: 1.4826 times their median
    absolute deviation, over the median."""

    unit: str
    value: float | None = None
    best: float | None = None
    spread: float | None = None
    repeats: int = Field(default=0, ge=0)
    reason: str | None = None


class NodeReport(Value):
    """What a node reached. name: of the host. facts: by check, as printed.

    rates: of products, by device. missing: the checks that gave nothing, each with the reason.
    """

    node_rank: int = Field(ge=0)
    name: str
    rates: dict[str, Rate] = Field(default_factory=dict)
    facts: dict[str, dict[str, Fact]] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)


class CollectiveReport(Value):
    """A collective of all ranks at one size. seconds: of the slowest rank, the median of the blocks. bytes: of the
    whole message. wrong: the first wrong value, as the rank found it; None when every rank had the right ones."""

    operation: str
    bytes: int = Field(ge=1)
    ranks: int = Field(ge=2)
    seconds: float = Field(gt=0)
    best_seconds: float = Field(gt=0)
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: str | None = None


class PairReport(Value):
    """A message between two ranks, one way. members: the names of their nodes, or of their devices."""

    ranks: tuple[int, int]
    members: tuple[str, str]
    bytes: int = Field(ge=1)
    seconds: float = Field(gt=0)
    bytes_per_second: float
    wrong: str | None = None


class PreflightFinding(Value):
    """Something that is not as it should be, with the nodes that it is about. figure: the rate or the check."""

    kind: FindingKind
    nodes: tuple[str, ...]
    figure: str
    sentence: str


class PreflightReport(Document):
    """A preflight.

    at: when the report was made, in UTC. launcher: how the nodes were reached. short: with less time for each check.
    evidence: why it ended early. backend: of the collectives. collectives_missing: why none were measured.
    """

    KIND: ClassVar[str] = "preflight"

    run_id: str
    at: str
    launcher: str
    framework: str
    short: bool
    word: PreflightWord
    evidence: str | None = None
    backend: str | None = None
    nodes: tuple[NodeReport, ...] = ()
    barrier_seconds: float | None = None
    collectives: tuple[CollectiveReport, ...] = ()
    collectives_missing: str | None = None
    pairs: tuple[PairReport, ...] = ()
    findings: tuple[PreflightFinding, ...] = ()

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended the preflight."""
        return (self.evidence or "").startswith("interrupted")

    @property
    def remarks(self) -> tuple[PreflightFinding, ...]:
        """The findings that do not make a node out of line."""
        return tuple(finding for finding in self.findings if finding.kind in REMARK_KINDS)

    @property
    def faults(self) -> tuple[PreflightFinding, ...]:
        """The other findings."""
        return tuple(finding for finding in self.findings if finding.kind not in REMARK_KINDS)

    @property
    def others(self) -> tuple[PreflightFinding, ...]:
        """The findings that others use a device or the processors."""
        return tuple(finding for finding in self.findings if finding.kind == "others")

    @property
    def sentence(self) -> str:
        """The word, the number of nodes, the fastest all-reduce, and what is out of line."""
        if self.word == "failed":
            reason = self.evidence or "; ".join(finding.sentence for finding in self.faults)
            return f"failed: {reason}"[:LONGEST_SENTENCE]
        rates = [row.bus_bytes_per_second / 1e9 for row in self.collectives if row.operation == "all_reduce"]
        parts = [f"{self.word}: {len(self.nodes)} node(s)"]
        parts += [f"all_reduce up to {max(rates):.3g} GB/s bus bandwidth"] if rates else []
        parts += [finding.sentence for finding in self.faults[:2]]
        parts += [f"{len(self.faults) - 2} more in preflight.json"] if len(self.faults) > 2 else []
        parts += [f"{len(self.remarks)} remark(s)"] if self.remarks else []
        return "; ".join(parts)[:LONGEST_SENTENCE]
