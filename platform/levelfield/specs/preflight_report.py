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
MAX_SENTENCE_LENGTH = 500


class Rate(Value):
    """A rate of a node."""

    unit: str
    value: float | None = None  # the median of the repeats; None: unknown, as `reason` says
    best: float | None = None  # of the repeats
    spread: float | None = None  # of the repeats, as a share of the median
    repeats: int = Field(default=0, ge=0)
    reason: str | None = None  # why `value` is None


class NodeReport(Value):
    """What a node reached."""

    node_rank: int = Field(ge=0)
    name: str  # of the host
    rates: dict[str, Rate] = Field(default_factory=dict)  # of products, by figure and device, such as `matmul 0`
    facts: dict[str, dict[str, Fact]] = Field(default_factory=dict)  # by check and name, as printed
    missing: dict[str, str] = Field(default_factory=dict)  # by check that gave nothing: the reason


class CollectiveReport(Value):
    """A collective of all ranks at one size."""

    operation: str
    bytes: int = Field(ge=1)  # of the whole message
    ranks: int = Field(ge=2)  # how many take part
    seconds: float = Field(gt=0)  # of the slowest rank, the median of the blocks of calls
    best_seconds: float = Field(gt=0)  # likewise, of the fastest block
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: str | None = None  # the first wrong value, as the rank found it; None when every rank had the right ones


class PairReport(Value):
    """A message between two ranks, one way."""

    ranks: tuple[int, int]
    members: tuple[str, str]  # the names of the ranks' nodes, or of their devices
    bytes: int = Field(ge=1)
    seconds: float = Field(gt=0)
    bytes_per_second: float
    wrong: str | None = None  # as in CollectiveReport


class PreflightFinding(Value):
    """Something that is not as it should be."""

    kind: FindingKind
    nodes: tuple[str, ...]  # the names of those that it is about
    figure: str  # the rate or the check
    sentence: str


class PreflightReport(Document):
    """preflight.json."""

    KIND: ClassVar[str] = "preflight"

    run_id: str
    at: str  # when the report was made, in UTC
    launcher: str  # how the nodes were reached
    framework: str  # with its version
    short: bool  # each check had less time
    word: PreflightWord
    evidence: str | None = None  # why it ended early
    backend: str | None = None  # of the collectives
    nodes: tuple[NodeReport, ...] = ()
    barrier_seconds: float | None = None
    collectives: tuple[CollectiveReport, ...] = ()
    collectives_missing: str | None = None  # why none were measured
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
        """The other findings: rates that are out of line, and checks that are missing or wrong."""
        return tuple(finding for finding in self.findings if finding.kind not in REMARK_KINDS)

    @property
    def other_use_findings(self) -> tuple[PreflightFinding, ...]:
        """The findings that other programs use a device or the processors."""
        return tuple(finding for finding in self.findings if finding.kind == "others")

    @property
    def sentence(self) -> str:
        """The word, the number of nodes, the fastest all-reduce, and what is out of line."""
        if self.word == "failed":
            reason = self.evidence or "; ".join(finding.sentence for finding in self.faults)
            return f"failed: {reason}"[:MAX_SENTENCE_LENGTH]
        rates = [row.bus_bytes_per_second / 1e9 for row in self.collectives if row.operation == "all_reduce"]
        parts = [f"{self.word}: {len(self.nodes)} node(s)"]
        parts += [f"all_reduce up to {max(rates):.3g} GB/s bus bandwidth"] if rates else []
        parts += [finding.sentence for finding in self.faults[:2]]
        parts += [f"{len(self.faults) - 2} more in preflight.json"] if len(self.faults) > 2 else []
        parts += [f"{len(self.remarks)} remark(s)"] if self.remarks else []
        return "; ".join(parts)[:MAX_SENTENCE_LENGTH]
