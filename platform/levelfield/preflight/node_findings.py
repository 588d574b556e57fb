"""Which node of a preflight is out of line: with its peers, or by what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from levelfield.measure.device_use import device_sentence, in_use
from levelfield.measure.other_use import HOST_LIMIT
from levelfield.preflight.peer_comparison import PeerFinding, PeerReading, compare_peers
from levelfield.preflight.preflight_events import PRODUCT, PreflightFacts
from levelfield.specs.preflight_report import Fact, FindingKind, NodeReport, PairReport, PreflightFinding, PreflightWord

# Facts that a training needs equal on all nodes, by the check that reads them.
SETTINGS = {
    "limits": (
        "processor", "governor", "threads_per_core", "kernel", "usable_cores", "locked_memory", "open_files",
        "processor_quota",
    ),
    "memory": ("transparent_huge_pages", "huge_pages"),
}  # fmt: skip


class DeviceState(NamedTuple):
    """What a vendor's tool shows of a device before the preflight starts on it. load: 0 to 1."""

    node: str
    device: str
    used_bytes: int | None
    memory_bytes: int | None
    load: float | None


def node_findings(
    facts: PreflightFacts, devices: Sequence[DeviceState] = (), locks_memory: bool = False
) -> list[PreflightFinding]:
    """Return everything that is out of line, and remarks.

    locks_memory: whether ranks lock much memory, as RDMA between accelerators does.
    """
    found = [*_missing(facts.nodes), *_wrong(facts)]
    for figure, readings in _readings(facts.nodes).items():
        found += [_of_peers(figure, each, len(readings)) for each in compare_peers(readings)]
    found += _of_pairs(facts.pairs)
    for name, device, used, memory, load in devices:
        if in_use(used, memory, load):
            said = device_sentence(device, used, memory, load, "before the preflight")
            found.append(_of_node("others", name, "device", said))
    locked = _locked_memory(facts.nodes) if locks_memory else ()
    return [*found, *_others(facts.nodes), *_settings(facts.nodes), *locked]


def word_of(found: Sequence[PreflightFinding], nodes: Sequence[NodeReport]) -> PreflightWord:
    """Return the word of a preflight that ended by itself."""
    kinds = {finding.kind for finding in found}
    if "wrong" in kinds:
        return "failed"
    if kinds & {"slow", "fast", "differ"}:
        return "out of line"
    if "missing" in kinds:
        return "incomplete"
    return "in line" if any(len(readings) > 1 for readings in _readings(nodes).values()) else "not compared"


def _of_node(kind: FindingKind, node: str, figure: str, said: str) -> PreflightFinding:
    return PreflightFinding(kind=kind, nodes=(node,), figure=figure, sentence=f"{node}: {said}")


def _readings(nodes: Sequence[NodeReport]) -> dict[str, dict[str, PeerReading]]:
    """Return the readings of each figure by node. Of products, the devices of all nodes are peers."""
    found: dict[str, dict[str, PeerReading]] = {}
    for node in nodes:
        for figure, rate in node.rates.items():
            if rate.value is not None:
                device = figure.removeprefix(PRODUCT) if figure.startswith(f"{PRODUCT} ") else ""
                name = f"{node.name} device{device}" if device else node.name
                reading = PeerReading(rate.value, rate.spread or 0.0)
                found.setdefault(PRODUCT if device else figure, {})[name] = reading
    return found


def _missing(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    for node in nodes:
        for check, reason in node.missing.items():
            yield _of_node("missing", node.name, check, f"no {check} check: {reason}")
    yield from _missing_products(nodes)


def _missing_products(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    """Return the nodes without a rate of products that others have, and those whose probe gave none."""
    have = {node.name: [f for f in node.rates if f.split()[0] == PRODUCT] for node in nodes}
    for node in nodes:
        whys = [node.rates[figure].reason for figure in have[node.name] if node.rates[figure].value is None]
        if any(have.values()) and not have[node.name]:
            whys = ["the rank did not record it"]
        for why in whys:
            yield _of_node("missing", node.name, PRODUCT, f"no {PRODUCT} rate: {why}")


def _wrong(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    names = tuple(node.name for node in facts.nodes)
    for row in facts.collectives:
        if row.wrong is not None:
            sentence = f"{row.operation} of {row.bytes} bytes gave wrong values: {row.wrong}"
            yield PreflightFinding(kind="wrong", nodes=names, figure=row.operation, sentence=sentence)
    for pair in facts.pairs:
        if pair.wrong is not None:
            sentence = f"{pair.members[0]} and {pair.members[1]}: a message came back wrong: {pair.wrong}"
            yield PreflightFinding(kind="wrong", nodes=pair.members, figure="pair", sentence=sentence)


def _of_peers(figure: str, found: PeerFinding, peers: int) -> PreflightFinding:
    names, apart, limit = ", ".join(found.nodes), f"{1 - found.ratio:.0%}", f"at most {1 - found.limit:.0%} is in line"
    if found.word == "differ" and peers == 2:
        said = f"{' and '.join(found.nodes)}: {figure} differs by {apart} ({limit}); two nodes do not show which one "
        said += "is at fault"
    elif found.word == "differ":
        said = f"{names}: {figure} is {apart} below the other nodes; neither group is clearly the larger"
    elif found.word == "slow":
        said = f"{names}: {figure} is {apart} below the median of {peers} nodes; {limit}"
    else:
        said = f"{names}: {figure} is {found.ratio:.3g} times the median of {peers} nodes; at most "
        said += f"{found.limit:.3g} times is in line; look for other hardware, or a wrong unit"
    return PreflightFinding(kind=found.word, nodes=found.nodes, figure=figure, sentence=said)


def _of_pairs(pairs: Sequence[PairReport]) -> Iterator[PreflightFinding]:
    """Return the members whose best pair is out of line, else the pairs: a member is as good as its best link."""
    largest = max((pair.bytes for pair in pairs), default=0)
    big = [pair for pair in pairs if pair.bytes == largest]
    best: dict[str, PeerReading] = {}
    for pair in big:
        for member in pair.members:
            rate = max(pair.bytes_per_second, best[member].value if member in best else 0.0)
            best[member] = PeerReading(rate)
    found = compare_peers(best) if len(best) > 2 else []
    yield from (_of_peers("messages in pairs", each, len(best)) for each in found)
    if not found and len(big) > 2:
        links = {f"{pair.members[0]} to {pair.members[1]}": PeerReading(pair.bytes_per_second) for pair in big}
        yield from (_of_peers("messages", each, len(big)) for each in compare_peers(links) if each.word == "slow")


def _others(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    for node in nodes:
        load = node.facts.get("load", {})
        used, cores = load.get("other_cores"), load.get("cores")
        if isinstance(used, (int, float)) and isinstance(cores, int) and not used <= HOST_LIMIT * cores:
            said = f"other programs used {used:.2f} of {cores} cores (limit: {HOST_LIMIT * cores:.2g})"
            yield _of_node("others", node.name, "load", said)


def _locked_memory(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    """Return the nodes that limit locked memory. One limit on all nodes is no difference, but it is too little."""
    for node in nodes:
        limit = node.facts.get("limits", {}).get("locked_memory")
        if isinstance(limit, int):
            said = f"locked memory is limited to {limit >> 10} KiB; RDMA needs it without a limit (memlock)"
            yield _of_node("setting", node.name, "locked_memory", said)


def _settings(nodes: Sequence[NodeReport]) -> Iterator[PreflightFinding]:
    for check, names in SETTINGS.items():
        for name in names:
            given = {node.name: node.facts[check].get(name) for node in nodes if check in node.facts}
            if len(set(given.values())) > 1:
                yield _setting(name, given)


def _setting(name: str, given: Mapping[str, Fact]) -> PreflightFinding:
    common, number = Counter(given.values()).most_common(1)[0]
    known = number > len(given) / 2
    odd = tuple(node for node, value in given.items() if value != common or not known)
    shown = ", ".join(f"{node}: {given[node]}" for node in odd[:4])
    most = f"; the others: {common}" if known else ""
    return PreflightFinding(kind="setting", nodes=odd, figure=name, sentence=f"{name} differs: {shown}{most}")
