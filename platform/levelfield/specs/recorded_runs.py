"""Runs whose records the repository keeps, and the files with their digests that each rests on.

tested.json beside implementation.yaml: the difference of an implementation from torch in each tested layout.
tested-references.json of torch: the curves that these runs are compared with. tests/models/matrix.py writes both.
docs/verified/rehearsed.json: the real code at full scale on devices that only keep books of their memory.
tests/gpu/rehearse_all.py writes it. Nobody edits any of them by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning

KEY_LENGTH = 12
FileDigests = Mapping[str, str]  # path to sha256
# A shape may be noisier than those of the matrix: then its limits are so many times its own noise, but no more than
# LOOSEST times the fixed ones. A shape beyond that is chaotic, and no run of it shows anything.
OVER_NOISE = 4
LOOSEST = 100


class Basis(Value):
    """The files and the sets of files that runs rest on.

    files: by key, "DIGEST  PATH" as sha256sum prints it. A path begins with models/, platform/ or tests/gpu/. That of a
    manifest ends with #KIND, and its digest is of the parts that a training on this kind of device follows from.
    sets: by key, the keys of files, with a space between. Each key is the begin of a digest of what it stands for, so
    that a digest edited by hand is an error.
    """

    files: dict[str, str]
    sets: dict[str, str]

    @model_validator(mode="after")
    def _keys_are_those_of_their_content(self) -> Basis:
        for key, line in self.files.items():
            digest, separator, path = line.partition("  ")
            if not separator or key != file_key(path, digest):
                raise ValueError(f"files.{key}: its content has another key; it was edited. Train the runs again")
        for key, names in self.sets.items():
            lost = [name for name in names.split() if name not in self.files]
            if lost or key != set_key(names.split()):
                why = f"found no file {lost[0]}" if lost else "its content has another key; it was edited"
                raise ValueError(f"sets.{key}: {why}. Train the runs again")
        return self

    def of(self, key: str) -> dict[str, str]:
        """Return the digests of a set, by path."""
        pairs = (self.files[name].split("  ", 1) for name in self.sets[key].split())
        return {path: digest for digest, path in pairs}


def file_key(path: str, digest: str) -> str:
    return _short(f"{digest}  {path}")


def set_key(files: Iterable[str]) -> str:
    return _short(" ".join(files))


def key_of(digests: FileDigests) -> str:
    """Return the key of the set of these files."""
    return set_key(file_key(path, digests[path]) for path in sorted(digests))


def basis_of(sets: Iterable[FileDigests]) -> Basis:
    """Return the basis that has these sets."""
    files: dict[str, str] = {}
    found: dict[str, str] = {}
    for digests in sets:
        own = {file_key(path, digests[path]): f"{digests[path]}  {path}" for path in sorted(digests)}
        files |= own
        found[set_key(own)] = " ".join(own)
    return Basis(files=dict(sorted(files.items(), key=lambda item: item[1].split("  ", 1)[1])), sets=found)


def _refuse_lost(sets: Mapping[str, str], keys: Iterable[tuple[str | None, str]], again: str) -> None:
    """Raises ValueError for the first key that no set has. keys: each with what rests on it."""
    for key, what in keys:
        if key not in sets:
            raise ValueError(f"basis.sets: found no '{key}', which {what} rests on. {again}")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


class DifferenceLimits(Value):
    """The largest relative differences that pass."""

    first_loss: float
    loss: float
    grad_norm: float


# fp32: the limits allow for rounding in another order. 8 and 16 bits: they allow for the rounding of the format, as the
# matrix's reference is torch in fp32. So they show that the layout works; docs/alignment.md compares the arithmetic.
LIMITS: dict[Precision, DifferenceLimits] = {
    "fp32": DifferenceLimits(first_loss=1e-6, loss=1e-5, grad_norm=1e-4),
    "bf16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp8": DifferenceLimits(first_loss=1e-3, loss=1e-2, grad_norm=0.2),
}


class OwnNoise(DifferenceLimits):
    """The largest relative differences of torch's honest runs of a shape among themselves."""

    first_loss: float = 0
    loss: float = 0
    grad_norm: float = 0
    parameter_norm: float = 0


def _scaled(fixed: float, own: float) -> float:
    return min(max(fixed, OVER_NOISE * own), LOOSEST * fixed)


class Difference(Value):
    """The largest relative differences of a run from the reference; None: not finite, or not available.

    first_loss, loss: of the loss at step 1, and at any step. grad_norm: of the global gradient norm at any step.
    parameter_norm: of one parameter's gradient norm, at the steps that record it. total_norm: between the norm of all
    parameters' gradients and the run's own gradient norm, at the same steps.
    """

    first_loss: float | None
    loss: float | None
    grad_norm: float | None
    parameter_norm: float | None
    total_norm: float | None
    same_weights: bool
    same_tokens: bool

    def beyond(
        self, precision: Precision = "fp32", noise: OwnNoise | None = None
    ) -> dict[str, tuple[float | None, float]]:
        """Return each figure that is not within its limit of `precision`, with the limit, for a shape of this noise."""
        limits, own = LIMITS[precision], noise or OwnNoise()
        bounds = {
            "first_loss": _scaled(limits.first_loss, own.first_loss),
            "loss": _scaled(limits.loss, own.loss),
            "grad_norm": _scaled(limits.grad_norm, own.grad_norm),
            "total_norm": 1e-5,
        }
        if precision == "fp32":  # in 16 bits the norm of a small parameter is mostly rounding error
            bounds["parameter_norm"] = _scaled(limits.grad_norm, own.parameter_norm)
        figures = ((name, getattr(self, name), limit) for name, limit in bounds.items())
        return {name: (value, limit) for name, value, limit in figures if value is None or not value <= limit}

    def within(self, precision: Precision = "fp32", noise: OwnNoise | None = None) -> bool:
        """Return whether every difference is within the limits of `precision`, for a shape of this noise."""
        return not self.beyond(precision, noise) and self.same_weights and self.same_tokens


class MatrixRun(Value):
    """One run of a family's small model. failure: the error message of a failed run; its difference is None.

    noise: of torch's honest runs of this model, in float32; None in files from before it was recorded.
    rests_on: the key of the files that its ranks imported. reference: the key of torch's curve that it was compared
    with; None for a curve that was recorded for all checkouts. Both are None in files without `basis`.
    """

    name: str
    family: str
    precision: Precision
    layout: Layout
    steps: int
    difference: Difference | None
    failure: str | None = None
    noise: OwnNoise | None = None
    rests_on: str | None = None
    reference: str | None = None

    @property
    def passed(self) -> bool:
        return self.difference is not None and self.difference.within(self.precision, self.noise)


class LayoutRuns(Document):
    """The runs of one version on one kind of device, compared with torch in one process.

    basis: what each run rests on. A file from before it has None, and all of its runs rest on one digest: rests_on, of
    all code that the framework's own runs follow from (node/code_digest.py). sources: the same with torch's code.
    """

    KIND: ClassVar[str] = "tested"

    framework: str
    version: str
    device_kind: str
    date: str
    machine: str
    sources: str | None = None
    rests_on: str | None = None
    basis: Basis | None = None
    runs: tuple[MatrixRun, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> LayoutRuns:
        runs = [run for run in self.runs if self.basis or run.rests_on]
        keys = ((run.rests_on, f"{run.family} {run.name}") for run in runs)
        _refuse_lost(self.basis.sets if self.basis else {}, keys, "Train the runs again")
        return self


class CurveFigures(Value):
    """The figures of one training that a comparison reads, as levelfield.testing has them."""

    losses: tuple[float, ...] = Field(min_length=1)
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]
    gradients: dict[int, dict[str, float]]

    @property
    def key(self) -> str:
        """The begin of the digest of all figures. A run records it as that of its reference."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return _short(text)


class ReferenceCurve(Value):
    """torch's curve of one family in one process in float32.

    key: of `figures`. difference: of the last training, by the code that `rests_on` names, from `figures`: zero, or
    within `noise`. noise: of torch's honest runs of the family. date, machine: of the last training.
    """

    family: str
    key: str
    figures: CurveFigures
    noise: OwnNoise
    difference: Difference
    date: str
    machine: str
    rests_on: str

    @model_validator(mode="after")
    def _key_is_that_of_the_figures(self) -> ReferenceCurve:
        if self.key != self.figures.key:
            raise ValueError(f"{self.family}: found key {self.key}, expected {self.figures.key} of its figures")
        return self


class ReferenceCurves(Document):
    """torch's curves by family. The pins of torch are among what each rests on."""

    KIND: ClassVar[str] = "references"

    basis: Basis
    curves: tuple[ReferenceCurve, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> ReferenceCurves:
        keys = ((curve.rests_on, "a curve") for curve in self.curves)
        _refuse_lost(self.basis.sets, keys, "Train the references again")
        return self

    def of(self, family: str) -> ReferenceCurve | None:
        return next((curve for curve in self.curves if curve.family == family), None)


class RehearsedRow(Value):
    """One plan that ran without its devices. No figure of it is one of speed.

    layout: in the plan's words, such as `DP8 SH3`. devices: on each of `nodes`. planned_bytes: by the planner, of the
    fullest device, without its margin; None where it has none. allocated_bytes, reserved_bytes: the peaks of the
    framework's allocator on the fullest device. failed_allocations: of all ranks that were run. rests_on: the key of
    the files that they imported.

    ranks: that were run; delivered: whether they were all, with their messages. Of the last step, of the rank with the
    most: flushes of the allocator, FLOPs of matrix products, bytes by kind of collective, waits for the device and
    copies from it, kernels a layer. attention: the kernel that the framework would take on this chip. layers: the maker
    of the layers and its version; None: they are the framework's own.
    """

    case: str = Field(min_length=1)
    framework: str = Field(min_length=1)
    chip: str = Field(min_length=1)
    nodes: int = Field(ge=1)
    devices: int = Field(ge=1)
    layout: str = Field(min_length=1)
    micro_batch: int = Field(ge=1)
    recompute: Literal["none", "selective", "full"]
    recompute_layers: int | None = Field(default=None, ge=1)
    planned_bytes: int | None = Field(default=None, ge=1)
    allocated_bytes: int = Field(ge=1)
    reserved_bytes: int = Field(ge=1)
    failed_allocations: int = Field(ge=0)
    virtual_pipeline: int = Field(default=1, ge=1)
    ranks: int = Field(default=1, ge=1)
    delivered: bool = False
    flushes: int = Field(default=0, ge=0)
    product_flops: float = Field(default=0, ge=0)
    gathered_bytes: int = Field(default=0, ge=0)
    scattered_bytes: int = Field(default=0, ge=0)
    all_reduced_bytes: int = Field(default=0, ge=0)
    sent_bytes: int = Field(default=0, ge=0)
    waits: int = Field(default=0, ge=0)
    copies_to_host: int = Field(default=0, ge=0)
    kernels_a_layer: float = Field(default=0, ge=0)
    attention: str | None = None
    layers: str | None = None
    date: str = Field(pattern=r"^20\d\d-\d\d-\d\d$")
    rests_on: str

    @model_validator(mode="after")
    def _reserved_holds_allocated(self) -> RehearsedRow:
        if self.reserved_bytes < self.allocated_bytes:
            raise ValueError(f"reserved_bytes: found {self.reserved_bytes:,}, less than allocated_bytes")
        return self

    @property
    def tuning(self) -> Tuning:
        return Tuning(
            layout=parse_layout(self.layout).layout,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers,
            virtual_pipeline=self.virtual_pipeline,
        )


class RehearsedRuns(Document):
    """All rehearsed plans, and the files that each rests on."""

    KIND: ClassVar[str] = "rehearsed"

    basis: Basis
    rows: tuple[RehearsedRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> RehearsedRuns:
        _refuse_lost(
            self.basis.sets, ((row.rests_on, f"{row.case} {row.layout}") for row in self.rows), "Rehearse it again"
        )
        return self
