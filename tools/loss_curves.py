"""The alignment rules on loss curves that others measured, beside FlagPerf's rule, as confusion tables.

    .venvs/dev/bin/python tools/loss_curves.py

Limits are learned on one half of the files and reported on the other: the older and the newer records of the paired
file, every second test of the unpaired one.
"""

from __future__ import annotations

import itertools
import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.measure.alignment import (
    FLAGPERF_LIMIT,
    AlignmentLimits,
    TrainingCurve,
    align,
    flagperf_difference,
    limit_of_place,
)
from levelfield.measure.calibration import noise_between, tolerance_limits
from levelfield.measure.curves import compare_tails

DATA = Path(__file__).parent / "data" / "loss_curves"
VENDORS = ("llama3_cuda", "llama3_rocm_mi350x")
# What each record's change is, by its title: of the arithmetic only, or of what is trained. Record 17 ("fold batch
# dim") could be either and is left out.
NUMERICS, MEANING = {3, 7, 8, 10, 11, 12, 13, 14}, {1, 2, 5, 6, 9, 15, 16}
BOTH_CURRENT = {4, 6, 7, 8, 9, 10, 11, 12, 13, 14}  # both vendors' curves are of the same state of the code
HALF = 9  # records up to this one are learned from
MARGIN = 0.01  # of the tails of unpaired curves; no margin changes what is found
OTHER_MODEL = ("swiglu", "rope", "untie", "disable_bias", "decoupled_lr", "qk_layernorm")


class Pair(NamedTuple):
    name: str
    same: bool
    run: TrainingCurve
    reference: TrainingCurve


def paired(records: range) -> Iterator[Pair]:
    """Each vendor against the other, and each change against what was before it."""
    changes = json.loads((DATA / "paired_dense_llama3.json").read_text())
    for i in records:
        now = {v: _training(changes[i]["curves"][v]["loss"]) for v in VENDORS if v in changes[i]["curves"]}
        if i in BOTH_CURRENT:
            yield Pair(f"{i}: AMD against NVIDIA", True, now[VENDORS[1]], now[VENDORS[0]])
        for vendor in now if i in NUMERICS | MEANING else ():
            before = changes[i - 1]["curves"].get(vendor)
            if before and changes[i]["curves"][vendor]["changed_here"]:
                yield Pair(f"{i}: {vendor}, the change", i in NUMERICS, now[vendor], _training(before["loss"]))


def unpaired(half: int) -> tuple[list[Pair], list[Pair]]:
    """(the same test on other hardware, really different models) of every second test."""
    tests = json.loads((DATA / "unpaired_gpt_100steps.json").read_text())[half::2]
    same = [Pair(t["test"], True, _training(t["h100"]), _training(t["gb200"])) for t in tests]
    other = [
        Pair(f"{a['test']} / {b['test']}", False, _training(a["h100"]), _training(b["gb200"]))
        for a, b in itertools.permutations(tests, 2)
        if _model(a["test"]) != _model(b["test"])
    ]
    return same, other


def paired_limits() -> AlignmentLimits:
    learned = [noise_between(p.run, p.reference) for p in paired(range(HALF + 1)) if p.same]
    return tolerance_limits(learned, "the older records")


def paired_words(limits: AlignmentLimits) -> list[tuple[Pair, str, bool]]:
    """(pair, our verdict without gradients, whether FlagPerf's rule accepts) of the newer records."""
    verdicts: list[tuple[Pair, str, bool]] = []
    for pair in paired(range(HALF + 1, 18)):
        finding = align(pair.run, pair.reference, limits)
        gradients_only = finding.verdict == "inconclusive" and finding.reason.startswith("gradients")
        verdicts.append((pair, "aligned" if gradients_only else finding.verdict, _flagperf(pair)))
    return verdicts


def unpaired_words() -> list[tuple[Pair, str, bool]]:
    same, other = unpaired(1)
    return [(p, compare_tails([p.run.losses], [p.reference.losses], MARGIN).word, _flagperf(p)) for p in same + other]


def _flagperf(pair: Pair) -> bool:
    figure = flagperf_difference(pair.run, pair.reference)
    return figure is not None and figure < FLAGPERF_LIMIT


def _training(losses: list[list[float]]) -> TrainingCurve:
    curve = {int(step): loss for step, loss in losses}
    return TrainingCurve(len(curve), curve)


def _model(test: str) -> tuple[bool, ...]:
    return tuple(word in test for word in OTHER_MODEL)


def _table(title: str, verdicts: list[tuple[Pair, str, bool]]) -> None:
    print(f"\n## {title}\n\n| really | pairs | ours | FlagPerf's rule |\n|---|---|---|---|")
    for same in (True, False):
        rows = [(word, accepted) for pair, word, accepted in verdicts if pair.same is same]
        ours = ", ".join(f"{n} {word}" for word, n in Counter(w for w, _ in rows).most_common())
        accepted = sum(a for _, a in rows)
        print(f"| {'the same' if same else 'different'} | {len(rows)} | {ours} | "
              f"{accepted} accepted, {len(rows) - accepted} refused |")  # fmt: skip


def main() -> None:
    limits = paired_limits()
    assert limits.curve is not None
    edges = f"{limit_of_place(limits.curve, 1):.1e} at step 1 to {limit_of_place(limits.curve, 100):.1e} at step 100"
    print(f"learned: curve {edges}: {limits.source}")
    _table("Paired: the same weights and tokens", paired_words(limits))
    _table("Unpaired: weights not shared", unpaired_words())


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
