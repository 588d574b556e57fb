"""Spikes of a loss curve: single steps that jump away from their neighbours.

A step's jump is the smaller of two relative differences: from the median of its neighbours, and from the farther of the
two steps beside it. So a steady fall of the loss is no jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

WIDTH = 5  # neighbours on each side
# A spike is more than this multiple of the reference's median jump, and more than this part of the loss.
USUAL, LEAST = 10, 0.01


def spike_steps(losses: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """Return the jump of each step that is a spike, where the reference has no jump of half that size."""
    ours, theirs, least = jumps(losses), jumps(reference), least_jump(reference)
    return {s: jump for s, jump in ours.items() if jump > least and not theirs.get(s, 0.0) > jump / 2}


def least_jump(reference: Mapping[int, float]) -> float:
    """Return the jump above which a step is a spike."""
    found = sorted(jumps(reference).values())
    return max(USUAL * found[len(found) // 2] if found else 0.0, LEAST)


def jumps(losses: Mapping[int, float]) -> dict[int, float]:
    """Return the jump of each step, relative to the median of its neighbours."""
    steps, found = sorted(losses), {}
    for place, step in enumerate(steps):
        near = [losses[s] for s in steps[max(0, place - WIDTH) : place + WIDTH + 1] if s != step]
        middle = sorted(near)[len(near) // 2] if near else losses[step]
        slope = max((abs(losses[b] - losses[a]) for a, b in _neighbours(steps, place)), default=0.0)
        found[step] = min(abs(losses[step] - middle), slope) / max(abs(middle), 1e-300)
    return found


def largest_rise(losses: Mapping[int, float]) -> tuple[int, float]:
    """Return the step whose loss rises most from the step before it, of two or more, and that rise relative to it."""
    rises = {b: (losses[b] - losses[a]) / max(abs(losses[a]), 1e-300) for a, b in pairwise(sorted(losses))}
    step = max(rises, key=lambda step: rises[step])
    return step, rises[step]


def _neighbours(steps: Sequence[int], place: int) -> list[tuple[int, int]]:
    pairs = [(steps[place - 1], steps[place])] if place else []
    return pairs + ([(steps[place], steps[place + 1])] if place + 1 < len(steps) else [])
