"""The rules of other tools, made from their descriptions, for step times by series and night: more is worse.

Each looks at one series alone, as the tool does, and says for every series whether the night raises an alarm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gate_rules.worlds import Array
from levelfield.measure.student import t_quantile
from numpy.typing import NDArray

Alarms = NDArray[np.bool_]
Peer = Callable[[Array, int], Alarms]


def fixed_against_last(values: Array, night: int) -> Alarms:
    """5 % above the night before."""
    return values[:, night] > 1.05 * values[:, night - 1]


def fixed_against_golden(values: Array, night: int) -> Alarms:
    """5 % above one run that was chosen once: the first."""
    return values[:, night] > 1.05 * values[:, 0]


def github_action_benchmark(values: Array, night: int) -> Alarms:
    """More than 200 % of the night before, its default."""
    return values[:, night] > 2.0 * values[:, night - 1]


def rustc_perf(values: Array, night: int) -> Alarms:
    """A relative change against the parent above Q3 + 3 IQR of the absolute changes of the last 30."""
    window = values[:, max(0, night - 31) : night]
    changes = np.abs(np.diff(window, axis=1) / window[:, :-1])
    first, third = np.quantile(changes, [0.25, 0.75], axis=1)
    return values[:, night] / values[:, night - 1] - 1 > third + 3 * (third - first)


def bencher_t_test(values: Array, night: int) -> Alarms:
    """Above the mean by t(.99, n - 1) standard deviations of up to 64 nights."""
    window = values[:, max(0, night - 64) : night]
    limit = t_quantile(0.01, window.shape[1] - 1) * window.std(axis=1, ddof=1)
    return values[:, night] > window.mean(axis=1) + limit


def conbench_z(values: Array, night: int) -> Alarms:
    """More than 5 standard deviations of the residuals above the rolling mean of up to 100 commits."""
    window = values[:, max(0, night - 100) : night]
    return values[:, night] > window.mean(axis=1) + 5 * window.std(axis=1, ddof=1)


def pytorch_hud(values: Array, night: int) -> Alarms:
    """Worse than 95 % of the median of four nights before, in the last two nights."""

    def violates(at: int) -> Alarms:
        return values[:, at] * 0.95 > np.median(values[:, at - 5 : at - 1], axis=1)

    return violates(night) & violates(night - 1)


PEERS: dict[str, Peer] = {
    "github-action-benchmark, 200 % of the last": github_action_benchmark,
    "fixed 5 % against the last night": fixed_against_last,
    "fixed 5 % against one golden run": fixed_against_golden,
    "rustc-perf, Q3 + 3 IQR": rustc_perf,
    "Bencher, t test .99": bencher_t_test,
    "Conbench, z 5": conbench_z,
    "PyTorch HUD, 5 % in two nights": pytorch_hud,
}
