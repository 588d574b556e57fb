"""Which node of a preflight is out of line: with its peers, or by what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from levelfield.measure.device_use import describe_device_use, is_used_by_others
from levelfield.measure.other_use import HOST_LIMIT
from levelfield.preflight.peer_comparison import PeerFinding, PeerReading, compare_peers
from levelfield.preflight.preflight_events import PRODUCT_FIGURE, PreflightFacts
from levelfield.specs.preflight_report import FindingKind, NodeReport, PairReport, PreflightFinding, PreflightWord

# Facts that a training needs equal on all nodes, by the check that reads them.
SETTINGS = {
    "limits": (
        "processor", "governor", "threads_per_core", "kernel", "usable_cores", "locked_memory", "open_files",
        "processor_quota",
    ),
    "memory": ("transparent_huge_pages", "huge_pages"),
}  # fmt: skip
# Bytes a second of the slowest network that anybody trains over, 100 Mbit/s Ethernet. It is no limit of a machine: the
# best rate of any collective stays below it only where something is broken.
MIN_COLLECTIVE_RATE = 12.5e6


class DeviceState(NamedTuple):
    """What a vendor's tool shows of a device before the preflight starts on it."""

    node: str
    device: str
    used_bytes: int | None
    memory_bytes: int | None
    load: float | None  # 0 to 1


def node_findings(
    facts: PreflightFacts, devices: Sequence[DeviceState] = (), locks_memory: bool = False
) -> list[PreflightFinding]:
    """Return everything that is out of line, and remarks.

    locks_memory: whether ranks lock much memory, as RDMA between accelerators does.
    """
    findings = [*_missing_findings(facts.nodes), *_wrong_findings(facts), *_broken_network_findings(facts)]
    for figure, readings in _readings(facts.nodes).items():
        findings += [_peer_finding(figure, peer_finding, len(readings)) for peer_finding in compare_peers(readings)]
    findings += _pair_findings(facts.pairs)
    for node_name, device, used_bytes, memory_bytes, device_load in devices:
        if is_used_by_others(used_bytes, memory_bytes, device_load):
            sentence = describe_device_use(device, used_bytes, memory_bytes, device_load, "before the preflight")
            findings.append(_node_finding("others", node_name, "device", sentence))
    for node in facts.nodes:
        load = node.facts.get("load", {})
        used_cores, cores = load.get("other_cores"), load.get("cores")
        if isinstance(used_cores, (int, float)) and isinstance(cores, int) and not used_cores <= HOST_LIMIT * cores:
            text = f"other programs used {used_cores:.2f} of {cores} cores (limit: {HOST_LIMIT * cores:.2g})"
            findings.append(_node_finding("others", node.name, "load", text))
    findings += _setting_findings(facts.nodes)
    for node in facts.nodes if locks_memory else ():  # one limit on all nodes is no difference, but it is too little
        limit = node.facts.get("limits", {}).get("locked_memory")
        if isinstance(limit, int):
            text = f"locked memory is limited to {limit >> 10} KiB; RDMA needs it without a limit (memlock)"
            findings.append(_node_finding("setting", node.name, "locked_memory", text))
    return findings


def preflight_word(findings: Sequence[PreflightFinding], nodes: Sequence[NodeReport]) -> PreflightWord:
    """Return the verdict on a preflight that ended by itself."""
    kinds = {finding.kind for finding in findings}
    if "wrong" in kinds:
        return "failed"
    if kinds & {"slow", "fast", "differ"}:
        return "out of line"
    if "missing" in kinds:
        return "incomplete"
    return "in line" if any(len(readings) > 1 for readings in _readings(nodes).values()) else "not compared"


def _node_finding(kind: FindingKind, node: str, figure: str, text: str) -> PreflightFinding:
    return PreflightFinding(kind=kind, nodes=(node,), figure=figure, sentence=f"{node}: {text}")


def _readings(nodes: Sequence[NodeReport]) -> dict[str, dict[str, PeerReading]]:
    """Return the readings of each figure by node. Of products, the devices of all nodes are peers."""
    readings: dict[str, dict[str, PeerReading]] = {}
    for node in nodes:
        for figure, rate in node.rates.items():
            if rate.value is not None:
                device = figure.removeprefix(PRODUCT_FIGURE) if figure.startswith(f"{PRODUCT_FIGURE} ") else ""
                name = f"{node.name} device{device}" if device else node.name
                reading = PeerReading(rate.value, rate.spread or 0.0)
                readings.setdefault(PRODUCT_FIGURE if device else figure, {})[name] = reading
    return readings


def _missing_findings(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    """Yield the checks and the probes that gave no answer, and nodes without a rate of products that others have."""
    for node in nodes:
        for check, reason in node.missing.items():
            yield _node_finding("missing", node.name, check, f"no {check} check: {reason}")
    product_figures = {node.name: [f for f in node.rates if f.split()[0] == PRODUCT_FIGURE] for node in nodes}
    for node in nodes:
        reasons = [
            node.rates[figure].reason for figure in product_figures[node.name] if node.rates[figure].value is None
        ]
        if any(product_figures.values()) and not product_figures[node.name]:
            reasons = ["the rank did not record it"]
        for text in reasons:
            yield _node_finding("missing", node.name, PRODUCT_FIGURE, f"no {PRODUCT_FIGURE} rate: {text}")


def _wrong_findings(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Yield the collectives and the messages that gave wrong values."""
    names = tuple(node.name for node in facts.nodes)
    for row in facts.collectives:
        if row.wrong is not None:
            sentence = f"{row.operation} of {row.bytes} bytes gave wrong values: {row.wrong}"
            yield PreflightFinding(kind="wrong", nodes=names, figure=row.operation, sentence=sentence)
    for pair in facts.pairs:
        if pair.wrong is not None:
            sentence = f"{pair.members[0]} and {pair.members[1]}: a message came back wrong: {pair.wrong}"
            yield PreflightFinding(kind="wrong", nodes=pair.members, figure="pair", sentence=sentence)


def _broken_network_findings(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Yield that all collectives are slower than any working network, which a comparison of nodes cannot show."""
    row = max(facts.collectives, key=lambda row: row.bus_bytes_per_second, default=None)
    if row is None or len(facts.nodes) < 2 or row.bus_bytes_per_second >= MIN_COLLECTIVE_RATE:
        return
    rate, expected_rate = (f"{rate / 1e6:.3g} MB/s" for rate in (row.bus_bytes_per_second, MIN_COLLECTIVE_RATE))
    sentence = f"no collective reached {expected_rate}, which 100 Mbit/s Ethernet carries: the best is {row.operation} "
    sentence += f"of {row.bytes} bytes with {rate}; look at `interface` and the links"
    yield PreflightFinding(
        kind="slow", nodes=tuple(node.name for node in facts.nodes), figure="collectives", sentence=sentence
    )


def _peer_finding(figure: str, finding: PeerFinding, peers: int) -> PreflightFinding:
    """Return the finding of a comparison with its sentence. peers: how many were compared."""
    names, apart = ", ".join(finding.nodes), f"{1 - finding.ratio:.0%}"
    limit = f"at most {1 - finding.limit:.0%} is in line"
    if finding.word == "differ" and peers == 2:
        sentence = f"{' and '.join(finding.nodes)}: {figure} differs by {apart} ({limit}); two nodes do not show which "
        sentence += "one is at fault"
    elif finding.word == "differ":
        sentence = f"{names}: {figure} is {apart} below the other nodes; neither group is clearly the larger"
    elif finding.word == "slow":
        sentence = f"{names}: {figure} is {apart} below the median of {peers} nodes; {limit}"
    else:
        sentence = f"{names}: {figure} is {finding.ratio:.3g} times the median of {peers} nodes; at most "
        sentence += f"{finding.limit:.3g} times is in line; look for other hardware, or a wrong unit"
    return PreflightFinding(kind=finding.word, nodes=finding.nodes, figure=figure, sentence=sentence)


def _pair_findings(pairs: Sequence[PairReport]) -> Iterator[PreflightFinding]:
    """Yield the members whose best pair is out of line, else the slow pairs: a member is as good as its best link."""
    largest = max((pair.bytes for pair in pairs), default=0)
    largest_pairs = [pair for pair in pairs if pair.bytes == largest]
    best_rates: dict[str, PeerReading] = {}
    for pair in largest_pairs:
        for member in pair.members:
            rate = max(pair.bytes_per_second, best_rates[member].value if member in best_rates else 0.0)
            best_rates[member] = PeerReading(rate)
    findings = compare_peers(best_rates) if len(best_rates) > 2 else []
    yield from (_peer_finding("messages in pairs", finding, len(best_rates)) for finding in findings)
    if not findings and len(largest_pairs) > 2:
        links = {
            f"{pair.members[0]} to {pair.members[1]}": PeerReading(pair.bytes_per_second) for pair in largest_pairs
        }
        yield from (
            _peer_finding("messages", finding, len(largest_pairs))
            for finding in compare_peers(links)
            if finding.word == "slow"
        )


def _setting_findings(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    """Yield the settings that differ between nodes, with those that have not the value of the majority."""
    for check, names in SETTINGS.items():
        for name in names:
            values = {node.name: node.facts[check].get(name) for node in nodes if check in node.facts}
            if len(set(values.values())) > 1:
                common_value, number = Counter(values.values()).most_common(1)[0]
                is_majority = number > len(values) / 2
                deviating_nodes = tuple(
                    node for node, value in values.items() if value != common_value or not is_majority
                )
                examples = ", ".join(f"{node}: {values[node]}" for node in deviating_nodes[:4])
                majority_words = f"; the others: {common_value}" if is_majority else ""
                sentence = f"{name} differs: {examples}{majority_words}"
                yield PreflightFinding(kind="setting", nodes=deviating_nodes, figure=name, sentence=sentence)
