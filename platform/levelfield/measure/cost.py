"""The cost of a million tokens, from a run's speed and energy and the user's own prices.

    cost = 1e6 (H U / (3600 R) + J P E / 3.6e6)

H: the rent, or for an owned machine capital / (years * 8766 * utilisation). Currency per hour and unit.
U: the units that are paid for: the run's devices or its nodes.
R: tokens per second of all devices.
J: energy of all nodes for one token, in joules, where it was measured, else of all devices. Only for an owned machine.
P: price of power, currency per kWh (3.6e6 J).
E: PUE, power of the whole site over that of its computers.

A planned training has no measured energy: J is the most that its makers let the devices draw, over R.

Without node power J covers the chips alone, and the power of hosts is not in the cost. The power of the network,
people, storage, software, loans, failed runs and the time before the window are never in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from levelfield.specs.prices import Prices

MILLION_TOKENS = 1e6
_SECONDS_PER_HOUR, _HOURS_PER_YEAR = 3600.0, 8766.0  # a year of 365.25 days
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class ResourceUse:
    """The machines and the energy that a run used, or that a planned training will."""

    chip: str
    is_host_share: bool
    nodes: int
    devices: int
    tokens_per_second: float | None  # of all devices
    joules_per_token: float | None
    missing_energy_reason: str | None = None  # why joules_per_token is None
    node_joules_per_token: float | None = None  # of whole nodes; None where it was not read


@dataclass(frozen=True)
class Cost:
    """The cost of a million tokens."""

    value: float | None  # the sum; None with the reason
    machine: float | None = None  # the rent or the capital
    power: float | None = None  # None where the rent includes it
    reason: str | None = None
    power_of: Literal["nodes", "chips"] | None = None  # whose power is in the cost


def cost_per_million_tokens(use: ResourceUse, prices: Prices) -> Cost:
    """Return the cost of a million tokens, in the currency of the prices."""
    price = prices.chips.get(use.chip)
    if price is None:
        return Cost(None, reason=f"found no price of chip '{use.chip}' among {', '.join(sorted(prices.chips))}")
    if use.is_host_share and price.per == "device":
        return Cost(None, reason=f"a device of '{use.chip}' is any share of a host; give its price per node")
    rate = use.tokens_per_second
    if rate is None or not 0 < rate < math.inf:
        return Cost(None, reason="the run has no speed")
    units = use.devices if price.per == "device" else use.nodes
    owned = price.own
    if owned is None:
        per_hour = price.rent or math.nan  # the document has one of both
    else:
        per_hour = owned.capital / (owned.years * _HOURS_PER_YEAR * owned.utilisation)
    machine = MILLION_TOKENS * per_hour * units / (_SECONDS_PER_HOUR * rate)
    if owned is None:
        return Cost(machine, machine)
    power_of: Literal["nodes", "chips"] = "chips" if use.node_joules_per_token is None else "nodes"
    joules = use.joules_per_token if power_of == "chips" else use.node_joules_per_token
    if joules is None or not 0 < joules < math.inf:
        return Cost(
            None, machine, reason=f"the run has no energy, so its power has no cost: {use.missing_energy_reason}"
        )
    power = MILLION_TOKENS * joules * owned.power_per_kwh * owned.pue / _JOULES_PER_KWH
    return Cost(machine + power, machine, power, power_of=power_of)


@dataclass(frozen=True)
class TrainingBill:
    """The time, energy and cost of a training on a number of tokens."""

    seconds: float
    device_hours: float
    kilowatt_hours: float | None  # of the devices alone; None where J is unknown
    cost: float | None = None  # None without prices, and where there is a reason
    reason: str | None = None

    @property
    def days(self) -> float:
        return self.seconds / 86400

    @property
    def megawatt_hours(self) -> float | None:
        return None if self.kilowatt_hours is None else self.kilowatt_hours / 1000


def training_bill(use: ResourceUse, tokens: float, prices: Prices | None = None) -> TrainingBill:
    """Return time, energy and cost of a training on `tokens` tokens. Raises ValueError for a use without a speed."""
    rate, joules = use.tokens_per_second, use.joules_per_token
    if rate is None or not 0 < rate < math.inf or not 0 < tokens < math.inf:
        raise ValueError(f"found {tokens} tokens at {rate} tokens/s, expected two positive numbers")
    seconds = tokens / rate
    bill = TrainingBill(
        seconds,
        device_hours=use.devices * seconds / _SECONDS_PER_HOUR,
        kilowatt_hours=None if joules is None else tokens * joules / _JOULES_PER_KWH,
    )
    if prices is None:
        return bill
    per_million = cost_per_million_tokens(use, prices)
    total = None if per_million.value is None else per_million.value * tokens / MILLION_TOKENS
    return replace(bill, cost=total, reason=per_million.reason)
