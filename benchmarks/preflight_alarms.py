"""How often a preflight names a node: where only noise differs, and where one node is slow.

    .venvs/dev/bin/python benchmarks/preflight_alarms.py [--quick]

Nodes have one figure each: a rate with normal noise between nodes. The repeats within a node show no noise, which is
the worst case: their spread only raises the limit. All percentages are of simulated preflights, from a fixed seed.
"""

from __future__ import annotations

import argparse

import numpy as np
from levelfield.preflight.peer_comparison import PeerReading, compare_peers

NODES = (2, 3, 4, 5, 8, 32)
NOISES = (0.01, 0.03, 0.10)
FACTORS = (1.0, 0.8, 0.5)  # of the first node's rate
TRIALS = 4000
QUICK_TRIALS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few trials: only whether it runs")
    trials = QUICK_TRIALS if parser.parse_args().quick else TRIALS
    random = np.random.default_rng(14)
    print("| nodes | noise | only noise: any finding | one node 20 % slower: named | at half speed: named |")
    print("|---|---|---|---|---|")
    for nodes in NODES:
        for noise in NOISES:
            shares = [share_named(random, nodes, noise, factor, trials) for factor in FACTORS]
            print(f"| {nodes} | {noise:.0%} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")


def share_named(random: np.random.Generator, nodes: int, noise: float, factor: float, trials: int) -> float:
    """How often the slow node is named, of two nodes both; without a slow node, how often there is any finding."""
    rates = np.exp(random.normal(0, noise, (trials, nodes)))
    rates[:, 0] *= factor
    hits = 0
    for row in rates:
        findings = compare_peers({f"node{at}": PeerReading(float(rate)) for at, rate in enumerate(row)})
        hits += bool(findings) if factor == 1 else any("node0" in finding.nodes for finding in findings)
    return hits / trials


if __name__ == "__main__":
    main()
