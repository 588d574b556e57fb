"""What a run's tokens cost at a user's prices, as a column, a line and a JSON object; measure/cost.py computes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from levelfield.measure.cost import Cost, ResourceUse, cost_per_million_tokens
from levelfield.report import repeats, tables
from levelfield.report.escapes import escape_markdown
from levelfield.report.repeats import FigureColumn, PlanDigests
from levelfield.report.result_words import COLUMNS
from levelfield.report.words import NONE, significant, wrapped
from levelfield.specs.prices import ChipPrice, Prices
from levelfield.specs.result import Result
from levelfield.specs.vendor import HOST_SHARE

COSTS_SCHEMA = "levelfield.costs/1"
COST_NAME = "cost_per_million_tokens"


@dataclass(frozen=True)
class RunCosts:
    """The costs of runs at these prices."""

    prices: Prices

    @property
    def column(self) -> FigureColumn:
        currency = self.prices.currency
        return FigureColumn(
            COST_NAME, f"{currency}/1e6 tokens", lambda r: self.cost_of(r).value, f"{currency}/M tokens", digits=None
        )

    def cost_of(self, result: Result) -> Cost:
        """Return the cost of a run; none for one that is not valid."""
        if result.status.word != "valid" or result.throughput is None:
            return Cost(None, reason=f"the run is {result.status.word}")
        energy = result.energy.joules_per_token
        tokens_per_second = result.throughput.tokens_per_second
        is_host_share = result.device_is == HOST_SHARE
        node_joules_per_token = repeats.FIGURE_COLUMNS["node_joules_per_token"].read(result)
        use = ResourceUse(
            result.chip,
            is_host_share,
            result.nodes,
            result.devices,
            tokens_per_second,
            energy.value,
            energy.reason,
            node_joules_per_token,
        )
        return cost_per_million_tokens(use, self.prices)

    def explain(self, result: Result) -> tuple[str, str]:
        """Return the cost of one run, and its parts or why there is none."""
        run_cost, currency = self.cost_of(result), self.prices.currency
        if run_cost.reason:
            return NONE, run_cost.reason
        parts = price_in_words(self.prices.chips[result.chip], currency)
        if run_cost.power is not None:
            power = f"{significant(run_cost.power)} for the power of its {run_cost.power_of}"
            parts = f"{significant(run_cost.machine)} for the machine, {power} ({parts})"
        return f"{significant(run_cost.value)} {currency} per million tokens", parts

    def notes(self, results: Sequence[Result]) -> list[str]:
        """Return what the prices are for each chip, and why runs have no cost; equal reasons once."""
        costs = [self.cost_of(result) for result in results]
        reasons = dict.fromkeys(f"none: {run_cost.reason}" for run_cost in costs if run_cost.reason)
        covered = dict.fromkeys(run_cost.power_of for run_cost in costs if run_cost.power_of)
        power = [f"the power is that of {' in some runs and of '.join(covered)}"] if covered else []
        prices = price_lines(self.prices, [result.chip for result in results])
        return [f"{self.column.heading}: {note}" for note in (*prices, *reasons, *power)]


def format_results(form: str, results: Sequence[Result], plans: PlanDigests, costs: RunCosts | None = None) -> str:
    """Return results as `table`, `markdown`, `csv` or `json`; with costs as a further column.

    plans: as `group_repeats` takes them. csv: a row for each run, raw numbers without rounding, units in the names.
    json: costs are an object of schema `levelfield.costs/1`.
    """
    cost_column = costs.column if costs else None
    figures = (*repeats.ALL_COLUMNS, cost_column) if cost_column else repeats.ALL_COLUMNS
    columns = (
        {**COLUMNS, cost_column.heading: lambda r: cost_column.text(cost_column.read(r))} if cost_column else COLUMNS
    )
    if form == "json":
        cost_objects = []
        if costs and cost_column:
            runs = [{"run_id": result.run_id, **asdict(costs.cost_of(result))} for result in results]
            prices = costs.prices.model_dump(mode="json")
            cost_objects = [{"schema": COSTS_SCHEMA, "unit": cost_column.unit, "prices": prices, "runs": runs}]
        return tables.format_json(results, plans, cost_objects, figures)
    if form == "csv":
        rows = []
        for result in results:
            row = tables.figure_row(result)
            if costs:
                run_cost = costs.cost_of(result)
                row |= {COST_NAME: run_cost.value, "cost_currency": costs.prices.currency}
                row |= {"cost_reason": run_cost.reason, "cost_power_of": run_cost.power_of}
            rows.append(row)
        return tables.csv_text(rows)
    notes = costs.notes(results) if costs else []
    if form == "markdown":
        lines = repeats.repeat_lines(results, plans, figures, is_markdown=True)
        lines += [line for note in notes for line in ("", escape_markdown(note))]
        return tables.format_markdown(results, columns) + "".join(f"{line}\n" for line in lines)
    lines = [
        *repeats.repeat_lines(results, plans, figures),
        *([""] if notes else []),
        *(wrapped(note, 2) for note in notes),
    ]
    return tables.format_text(results, columns=columns) + "".join(f"{line}\n" for line in lines)


def price_lines(prices: Prices, chips: Iterable[str]) -> Iterator[str]:
    """Yield the price of each of these chips that has one, in words."""
    for chip in dict.fromkeys(chips):
        if chip in prices.chips:
            yield f"{chip}: {price_in_words(prices.chips[chip], prices.currency)}"


def price_in_words(price: ChipPrice, currency: str) -> str:
    """Return a price in words."""
    if price.own is None:
        return f"rent of {price.rent:,.10g} {currency} an hour per {price.per}, with power"
    owned = price.own
    return (
        f"{owned.capital:,.12g} {currency} per {price.per} over {owned.years:g} years, in use for "
        f"{owned.utilisation:.0%} of them; power at {owned.power_per_kwh:g} {currency}/kWh and PUE {owned.pue:g}"
    )
