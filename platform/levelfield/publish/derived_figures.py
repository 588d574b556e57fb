"""Derived figures of published tables, recomputed from their own row: exactly, in SI units, with the arithmetic.

Inputs are the printed numbers. A table that was computed from more digits may differ in the last digit; the file then
records the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from levelfield.measure.flops import flops_per_token
from levelfield.specs.architecture import Model
from levelfield.specs.figures import ChipAsPublished, Column, Formula, PublishedFigure, PublishedRow, Setting, Shape


class Underivable(Exception):
    """The row lacks an input of the formula. The message names it."""


@dataclass(frozen=True)
class Derived:
    """A value in SI units and the numbers that it was computed from."""

    value: Fraction
    arithmetic: str


@dataclass(frozen=True)
class LoggedReading:
    """The figure that a formula reads: its numbers in SI units, and its text with its unit."""

    numbers: tuple[Fraction, ...] = ()
    text: str = ""

    @classmethod
    def of(cls, figure: PublishedFigure | None) -> LoggedReading:
        if figure is None:
            return cls()
        return cls(figure.numbers, f"{', '.join(figure.texts)} {figure.unit}".replace(" pieces", ""))


@dataclass(frozen=True)
class Inputs:
    """The inputs of a formula: the row's setting, the figure that its column names, and that of the baseline."""

    setting: Setting
    column: Column
    read: LoggedReading
    before: LoggedReading
    chip: ChipAsPublished | None

    @property
    def number(self) -> Fraction:
        """The single number of the input figure. Raises Underivable."""
        return _one(self.read, f"this row prints no {self.column.of}")

    @property
    def baseline(self) -> Fraction:
        return _one(self.before, f"there is no {self.column.of} of a baseline")

    @property
    def peak(self) -> Fraction:
        """The peak FLOP/s of one device that the report assumes. Raises Underivable."""
        dtype = self.column.peak
        found = self.chip.peaks_tflops.get(dtype) if self.chip and dtype else None
        if found is None:
            raise Underivable(f"no {dtype} peak of {self.setting.chip or 'a withheld chip'} under `chips`")
        return Fraction(found) * 10**12


def derive(
    column: Column,
    row: PublishedRow,
    baseline: PublishedRow | None,
    chip: ChipAsPublished | None,
    logged: LoggedReading | None = None,
) -> Derived:
    """Return the value of the column's formula for this row. `logged`: the input `log.NAME`. Raises Underivable."""
    if column.formula is None:
        raise Underivable("no formula is given")
    name = column.of or ""
    before = LoggedReading.of(baseline.figures.get(name)) if baseline else LoggedReading()
    inputs = Inputs(row.setting, column, logged or LoggedReading.of(row.figures.get(name)), before, chip)
    return FORMULAS[column.formula](inputs)


def _one(reading: LoggedReading, problem: str) -> Fraction:
    if len(reading.numbers) != 1:
        raise Underivable(problem)
    return reading.numbers[0]


def _over(whole: Fraction | int, by: Fraction, name: str | None) -> Fraction:
    if by == 0:
        raise Underivable(f"{name} is 0, expected a divisor that is not 0")
    return whole / by


def batch_over(i: Inputs) -> Derived:
    """Return the time of a step from samples/s, or samples/s from the time of a step."""
    batch = i.setting.global_batch
    return Derived(_over(batch, i.number, i.column.of), f"{batch} / {i.read.text}")


def product(one: Callable[[Setting], int], two: Callable[[Setting], int]) -> Callable[[Inputs], Derived]:
    """Return the formula of two numbers of the setting, multiplied."""

    def derived(i: Inputs) -> Derived:
        return Derived(Fraction(one(i.setting) * two(i.setting)), f"{one(i.setting)} x {two(i.setting)}")

    return derived


def times(count: Callable[[Setting], int]) -> Callable[[Inputs], Derived]:
    """Return the formula of the input figure, multiplied by a number of the setting."""
    return lambda i: Derived(i.number * count(i.setting), f"{i.read.text} x {count(i.setting)}")


def tokens_per_second_per_device(i: Inputs) -> Derived:
    length, devices = i.setting.sequence_length, i.setting.devices
    return Derived(i.number * length / devices, f"{i.read.text} x {length} / {devices}")


def megatron_2021(i: Inputs) -> Derived:
    """Return FLOP/s of one device by Narayanan et al. (2021), with the report's own vocabulary size."""
    s, vocab = i.setting, int(i.column.constants["vocab_size"])
    if s.model is None:
        raise Underivable("the setting has no `model`")
    if vocab < 2:
        raise Underivable(f"constants.vocab_size: found {vocab}, expected 2 or more")
    flops = flops_per_token("megatron-2021", _gpt(s.model, vocab), s.sequence_length, recompute="full")
    tokens = s.global_batch * s.sequence_length
    sizes = f"B {s.global_batch}, S {s.sequence_length}, L {s.model.layers}, h {s.model.hidden_size}, V {vocab}"
    return Derived(
        _over(Fraction(flops) * tokens, i.number, i.column.of) / s.devices,
        f"96 B S L h^2 (1 + S/6h + V/16Lh) / {i.read.text} / {s.devices}; {sizes}",
    )


def _gpt(shape: Shape, vocab_size: int) -> Model:
    """Return a GPT of this shape. The formula does not use the other fields."""
    return Model(
        family="gpt",
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=4 * shape.hidden_size,
        heads=1,
        kv_heads=1,
        vocab_size=vocab_size,
        positions="learned",
        norm="layernorm",
        norm_eps=1e-5,
        activation="gelu",
        bias=True,
        tied_embeddings=True,
        hidden_dropout=0,
        attention_dropout=0,
        init_std=0.02,
        scaled_residual_init=False,
    )


def share_of_peak(i: Inputs) -> Derived:
    return Derived(i.number / i.peak, f"{i.read.text} / {_tera(i.peak)}")


def six_n(i: Inputs) -> Derived:
    """Return FlagPerf's MFU: without attention, with the report's rounded number of parameters."""
    count = Fraction(i.column.constants["parameters"])
    return Derived(6 * count * i.number / i.peak, f"6 x {float(count):.10g} x {i.read.text} / {_tera(i.peak)}")


def chip_memory(i: Inputs) -> Derived:
    if i.chip is None or i.chip.memory_gib is None:
        raise Underivable(f"no memory of {i.setting.chip or 'a withheld chip'} under `chips`")
    return Derived(Fraction(i.chip.memory_gib) * 2**30, f"the memory of {i.setting.chip}, {i.chip.memory_gib:g} GiB")


def change(i: Inputs) -> Derived:
    return Derived(i.number - i.baseline, f"{i.read.text} - {i.before.text}")


def relative_change(i: Inputs) -> Derived:
    return Derived(_over(i.number, i.baseline, i.column.of) - 1, f"{i.read.text} / {i.before.text} - 1")


def same(i: Inputs) -> Derived:
    return Derived(i.number, f"{i.read.text}, as printed there")


def largest(i: Inputs) -> Derived:
    return Derived(max(_all(i)), f"the largest of {len(i.read.numbers)}")


def mean_of_last_five(i: Inputs) -> Derived:
    last = _all(i)[-5:]
    return Derived(sum(last, Fraction(0)) / len(last), f"the mean of the last {len(last)} of {len(i.read.numbers)}")


FORMULAS: dict[Formula, Callable[[Inputs], Derived]] = {
    "samples-per-second": batch_over,
    "step-seconds": batch_over,
    "tokens-per-second-per-device": tokens_per_second_per_device,
    "tokens-per-step": product(lambda s: s.global_batch, lambda s: s.sequence_length),
    "micro-batch-times-data": product(lambda s: s.micro_batch, lambda s: s.parallel.data),
    "megatron-2021": megatron_2021,
    "share-of-peak": share_of_peak,
    "aggregate": times(lambda s: s.devices),
    "6n": six_n,
    "chip-memory": chip_memory,
    "change": change,
    "relative-change": relative_change,
    "same": same,
    "largest": largest,
    "mean-of-last-five": mean_of_last_five,
    "batches-times-accumulation": times(lambda s: s.accumulation),
    "batches-times-global-batch": times(lambda s: s.global_batch),
}


def _all(i: Inputs) -> Sequence[Fraction]:
    if not i.read.numbers:
        raise Underivable(f"there is no {i.column.of}")
    return i.read.numbers


def _tera(flops_per_second: Fraction) -> str:
    return f"{float(flops_per_second) / 1e12:g} TFLOP/s"
