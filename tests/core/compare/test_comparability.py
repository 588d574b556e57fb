"""What must be equal, or no ratio is printed; what differs on purpose; what asks for caution."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from compared_records import CORPUS, WORK, other_use, record, repeats, with_result
from levelfield.compare.comparability import FIXED_READERS, NO_VALUE, Comparability, ComparedField, check_comparability
from levelfield.compare.sides import contradictions, exclusion_reason, side_of
from levelfield.errors import UsageError
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord


def against(*changed: RunRecord, base: list[RunRecord] | None = None, **options: Any) -> Comparability:
    """Compare a side with another that has nothing changed."""
    sides = side_of("A", base or repeats(1000, 1010, 990)), side_of("B", changed)
    return check_comparability(sides, **options)


def other(**changes: Any) -> Comparability:
    return against(*repeats(500, 505, 495, first=10, **changes))


def names(fields: Iterable[ComparedField]) -> list[str]:
    return [field.name for field in fields]


def numbers(message: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", message)


def test_equal_sides_are_comparable_and_differ_in_nothing() -> None:
    outcome = other()
    assert outcome.is_comparable and not outcome.deliberate
    assert [field.values for field in outcome.equal[:2]] == [(("yes",), ("yes",))] * 2  # counted, and one training
    recorded = [name for name in FIXED_READERS if name not in ("tokens read", "initial weights")]
    assert names(outcome.equal)[1:] == ["training", *recorded, "precision", "formulas"]
    assert names(outcome.cautions) == ["run order"]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("work", {"work": "sha256:" + "9" * 64}),
        ("corpus", {"corpus": "sha256:" + "9" * 64}),
        ("scale", {"scale": "full"}),
        ("window", {"window": (11, 29)}),
        ("device", {"device_is": "die"}),
        ("precision", {"precision": "bf16"}),
        ("formulas", {"formulas": ("6n/1", "palm/2")}),
        ("formulas", {"formulas": ()}),
        ("training", {"verdict": "different"}),
        ("training", {"verdict": "diverged"}),
        ("valid and sealed", {"evidence": "tampered", "evidence_reason": "events/rank0.jsonl differs"}),
        ("valid and sealed", {"evidence": "unsealed"}),
        ("valid and sealed", {"word": "invalid", "reason": "a step is missing"}),
    ],
)
def test_a_difference_where_none_may_be_is_named_with_both_values(field: str, change: dict[str, Any]) -> None:
    outcome = other(**change)
    assert not outcome.is_comparable and field in names(outcome.unequal)
    (unequal,) = (run for run in outcome.unequal if run.name == field)
    assert len(unequal.cells) == 2 and unequal.cells[0] != unequal.cells[1]


def done(records: list[RunRecord], **digests: str | None) -> list[RunRecord]:
    """The runs with digests of what they read and began with."""
    identity = {"work": WORK, "corpus": CORPUS, "tokens": "1ed0eef911710476", "initial_weights": "sha256:" + "7" * 64}
    return [with_result(run, identity={**identity, **digests}) for run in records]


@pytest.mark.parametrize(("name", "key"), [("tokens read", "tokens"), ("initial weights", "initial_weights")])
def test_runs_that_read_or_began_with_other_values_are_not_the_same_training(name: str, key: str) -> None:
    """Neither has a reference: both are unchecked, and nothing else tells them apart."""
    ours, theirs = repeats(1000, verdict="unchecked"), repeats(500, first=10, verdict="unchecked")
    outcome = against(*done(theirs), base=done(ours))
    assert outcome.is_comparable and name in names(outcome.equal)
    outcome = against(*done(theirs, **{key: "sha256:" + "8" * 64}), base=done(ours))
    assert names(outcome.unequal) == [name] and outcome.unequal[0].cells[1] == "sha256:888888888888"
    assert "training" not in names(outcome.equal) and outcome.equal[0].values == (("yes",), ("yes",))
    outcome = against(*done(theirs, **{key: None}), base=done(ours))  # of a record that lacks it
    assert outcome.is_comparable and name not in names(outcome.equal)
    failed = done(repeats(500, first=10, word="failed"), **{key: "8"})  # it did a part of the steps
    (status,) = against(*failed, base=done(ours)).unequal
    assert status.cells == ("yes", f"{failed[0].run_id}: failed")


def test_the_words_of_a_side_without_a_good_run_name_run_and_reason() -> None:
    outcome = other(evidence="tampered", evidence_reason="events/rank0.jsonl differs")
    (unequal,) = outcome.unequal
    first, *_ = unequal.cells[1].split(", ")
    assert first.split(": ") == ["20261122T100010Z_gpt_torch", "tampered", "events/rank0.jsonl differs"]


def test_formulas_that_one_side_lacks_are_no_difference() -> None:
    assert other(formulas=("palm/1", "new/1")).is_comparable


def test_unknown_formulas_on_both_sides_are_a_difference() -> None:
    outcome = against(*repeats(500, formulas=()), base=repeats(1000, first=5, formulas=()))
    assert names(outcome.unequal) == ["formulas"]


def test_formulas_of_two_versions_within_one_side_are_a_difference() -> None:
    runs = [*repeats(500, 505), record(9, 495, formulas=("6n/1", "palm/2"))]
    assert names(against(*runs).unequal) == ["formulas"]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("chip", {"chip": "Y1"}), ("framework", {"framework": "paddle"}),
        ("layout", {"layout": Layout(tensor=1, sharding_stage=1)}),
        ("micro-batch", {"micro_batch": 4}), ("recompute", {"recompute": "full"}), ("threads", {"threads": 2}),
        ("compile", {"compile": True}), ("attention", {"attention": "flash_attn"}), ("runtime", {"runtime": "docker"}),
        ("virtual pipeline", {"virtual_pipeline": 2}), ("recompute", {"recompute": "none", "recompute_layers": 3}),
        ("graph", {"graph": True}),
    ],
)  # fmt: skip
def test_a_free_choice_differs_on_purpose(field: str, change: dict[str, Any]) -> None:
    outcome = other(**change)
    assert outcome.is_comparable and names(outcome.deliberate) == [field]


def test_precision_differs_on_purpose_where_that_was_requested() -> None:
    def with_digest(runs: list[RunRecord], digest: str | None) -> list[RunRecord]:
        return [with_result(run, work_but_precision=digest) for run in runs]

    base = with_digest(repeats(1000, 1010, 990), "sha256:8")
    other_precision = repeats(500, 505, 495, first=10, precision="bf16", work="sha256:" + "7" * 64)
    same = with_digest(other_precision, "sha256:8")
    assert names(against(*same, base=base).unequal) == ["work", "precision"]
    outcome = against(*same, base=base, across_precision=True)
    assert outcome.is_comparable and names(outcome.deliberate) == ["precision"]
    for digest in ("sha256:9", None):
        changed = with_digest(other_precision, digest)
        assert names(against(*changed, base=base, across_precision=True).unequal) == ["work"]
    unknown = with_digest(repeats(1000, 1010, 990), None)
    both = against(*with_digest(other_precision, None), base=unknown, across_precision=True)
    assert names(both.unequal) == ["work"]  # unknown on both sides is not the same


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("software: driver", {"software": {"driver": "560"}}), ("image", {"image": "sha256:" + "5" * 64}),
        ("node", {"node": "node-2"}), ("kernel", {"kernel": "6.2"}),
        ("framework version", {"framework_version": "2.14.0"}),
        ("source", {"is_dirty": True}), ("commit", {"commit": "def"}), ("platform", {"platform_version": "0.2"}),
        ("variable OMP_NUM_THREADS", {"variables": {"OMP_NUM_THREADS": "1"}}), ("alignment", {"verdict": "unchecked"}),
        ("date", {"began": "2026-12-23T10:00:10+00:00"}), ("date", {"began": "unknown"}),
        ("implementation", {"implementation": "sha256:" + "6" * 64}),
    ],
)  # fmt: skip
def test_what_surrounds_a_run_asks_for_caution(field: str, change: dict[str, Any]) -> None:
    outcome = other(**change)
    assert outcome.is_comparable and field in names(outcome.cautions)


@pytest.mark.parametrize(
    ("used", "repeats_cells"),
    [
        (other_use(1.25, 2), "up to 1.2 of 2 cores"),
        (other_use(0.0, 2, in_use=True), "a device"),
        (other_use(0.1, 2, in_use=None), None),
        (other_use(None, None), None),
        (None, None),
    ],
)
def test_a_machine_that_others_used_asks_for_caution(used: Any, repeats_cells: str | None) -> None:
    runs = [with_result(run, other_use=used) for run in repeats(500, first=10)]
    outcome = [field.cells for field in against(*runs).cautions if field.name == "other programs"]
    assert outcome == ([("-", repeats_cells)] if repeats_cells else [])


@pytest.mark.parametrize(
    ("outcome", "base", "cells"),
    [
        ({"name": "cudnn"}, {"name": "flash"}, ("flash", "cudnn")),
        ({"name": "flash"}, {"name": "flash"}, None),
        ({"name": None, "reason": "the training reported 'warp'"}, {"name": "flash"}, None),
        (None, {"name": "flash"}, None),  # a result of an earlier version
    ],
)
def test_different_kernels_of_attention_ask_for_caution(outcome: Any, base: Any, cells: Any) -> None:
    def runs(kernel: Any, first: int) -> list[RunRecord]:
        made = repeats(500, first=first)
        return [with_result(run, attention_kernel=kernel) for run in made]

    result = against(*runs(outcome, 10), base=runs(base, 1))
    assert result.is_comparable
    assert [f.cells for f in result.cautions if f.name == "attention kernel"] == ([cells] if cells else [])


def test_twenty_nine_days_ask_for_no_caution() -> None:
    assert "date" not in names(other(began="2026-12-21T10:00:10+00:00").cautions)


def test_sides_that_ran_in_turn_have_no_order() -> None:
    base = [record(n, 1000) for n in (1, 3, 5)]
    assert not against(*(record(n, 1000) for n in (2, 4, 6)), base=base).cautions


def test_versions_of_another_framework_are_not_listed() -> None:
    outcome = other(framework="paddle", framework_version="3.3.1", environment="sha256:" + "0" * 64)
    assert not {"framework version", "environment"} & set(names(outcome.cautions))


def test_shares_of_a_host_are_other_devices_when_their_number_differs() -> None:
    two = repeats(500, devices=2, layout=Layout(data=2), device_is="host share")
    (unequal,) = against(*two, base=repeats(1000, first=5, device_is="host share")).unequal
    assert unequal.name == "device"
    assert [cell.partition(", ")[0] for cell in unequal.cells] == ["host share"] * 2
    assert [numbers(cell) for cell in unequal.cells] == [["1"], ["2"]]


def test_one_invalid_repeat_is_left_out_and_named() -> None:
    runs = [*repeats(500, 505, 495), record(9, 1.0, word="invalid", reason="step 7")]
    side = side_of("B", runs)
    (excluded,) = side.excluded
    assert len(side.counted) == 3 and excluded == (runs[3], f"invalid: {runs[3].reason}")
    (left,) = (field for field in against(*runs).cautions if field.name == "left out")
    assert left.cells == ("-", f"{runs[3].run_id}: {excluded[1]}")


def test_one_training_that_differs_stops_the_comparison_of_its_side() -> None:
    outcome = against(*repeats(500, 505), record(9, 495, verdict="diverged"))
    assert names(outcome.unequal) == ["training"]


def test_a_side_that_lies_before_another_one_is_told_also_where_a_third_lies_across() -> None:
    def side(*numbers: int, **changes: Any) -> list[RunRecord]:
        return [record(n, 1000 + n, **changes) for n in numbers]

    first, across, last = side(1, 3), side(2, 10, framework="paddle"), side(5, 6, framework="jax")
    outcome = check_comparability([side_of("ABC"[i], runs) for i, runs in enumerate((first, across, last))])
    assert "run order" in names(outcome.cautions)


def test_runs_of_two_series_are_no_side() -> None:
    runs = [record(1), record(2, micro_batch=4)]
    with pytest.raises(UsageError) as error:
        side_of("B", runs)
    facts = (f"micro_batch 8 in {runs[0].run_id}", f"4 in {runs[1].run_id}", "side B")
    assert all(fact in str(error.value) for fact in facts)


def test_a_run_given_twice_is_no_second_run() -> None:
    with pytest.raises(UsageError, match="twice"):
        side_of("B", [record(1), record(1)])


def test_a_copy_of_a_run_under_another_id_is_no_second_run() -> None:
    one = record(1)
    copy = record(2).model_copy(update={"step_seconds": one.step_seconds})
    side = side_of("B", [one, copy, record(3)])
    assert [run.run_id for run in side.counted] == [one.run_id, record(3).run_id]
    ((excluded, reason),) = side.excluded
    assert excluded == copy and "a copy" in reason and one.run_id in reason
    ended = record(4, word="failed").model_copy(update={"step_seconds": ()})
    assert "a copy" not in str(side_of("B", [ended, ended.model_copy(update={"run_id": "x"})]).excluded)


def test_no_run_is_no_side() -> None:
    with pytest.raises(UsageError, match="side B"):
        side_of("B", [])


class TestFiguresThatContradictEachOther:
    def with_speed(self, run: RunRecord, rate: float) -> RunRecord:
        """The run with another speed per device; that of all devices stays."""
        speed = {**run.stored_result.content["throughput"], "tokens_per_second_per_device": rate}
        return with_result(run, throughput=speed)

    def test_an_honest_record_has_none(self) -> None:
        assert (
            exclusion_reason(record(1)) is None
            and exclusion_reason(record(1, devices=4, layout=Layout(data=4))) is None
        )

    @pytest.mark.parametrize("factor", [1.01, 0.99, 4.0])
    def test_a_shifted_speed(self, factor: float) -> None:
        shifted = self.with_speed(record(1, devices=4, layout=Layout(data=4)), 1000.0 * factor)
        assert "tokens_per_second_per_device is" in str(list(contradictions(shifted)))

    def test_tokens_of_all_devices_taken_for_per_device(self) -> None:
        wrong = self.with_speed(record(1, devices=4, layout=Layout(data=4)), 4000.0)
        (message,) = contradictions(wrong)
        assert numbers(message) == ["4000.0", "4000.0", "4"]

    def test_a_speed_that_is_wrong_throughout_has_other_tokens_in_its_window(self) -> None:
        run = record(1, 4000.0, devices=4, layout=Layout(data=4))
        speed = {**run.stored_result.content["throughput"], "wall_seconds": 10_240 / 4000}
        wrong = with_result(run, throughput=speed)
        (unequal,) = against(wrong).unequal
        assert not list(contradictions(wrong)) and unequal.cells == ("10240", "40960")

    def test_a_layout_of_other_devices(self) -> None:
        (message,) = contradictions(record(1, layout=Layout(data=2)))
        assert numbers(message)[-2:] == ["2", "1"]


def test_base_beside_peak_asks_for_caution_and_the_chosen_fields_are_listed() -> None:
    def tuned(number: int, **chosen: str) -> RunRecord:
        run = record(number)
        tuning = {"word": "peak" if chosen else "base", "chosen": chosen}
        return with_result(run, tuning=tuning)

    mixed = check_comparability([side_of("A", [tuned(1)]), side_of("B", [tuned(2, layout="suite", threads="vendor")])])
    assert ("tuning", ("base", "peak")) in [(field.name, field.cells) for field in mixed.cautions]
    tuning_field = next(field for field in mixed.deliberate if field.name == "chosen fields")
    assert [cell.split(", ") for cell in tuning_field.cells] == [["-"], ["layout (suite)", "threads (vendor)"]]
    both = check_comparability([side_of("A", [tuned(1)]), side_of("B", [tuned(2)])])
    assert "tuning" not in [field.name for field in both.cautions]


def test_some_of_the_repeats_of_a_command_ask_for_caution() -> None:
    runs = [
        run.model_copy(update={"run_id": f"20261122T100001Z_r{n}", "command_repeats": 3})
        for n, run in enumerate(repeats(1000, 1010, 990))
    ]
    others = repeats(400, first=10, framework="paddle")

    def repeats_cells(*chosen: RunRecord) -> list[tuple[str, ...]]:
        outcome = check_comparability([side_of("A", chosen), side_of("B", others)]).cautions
        return [field.cells for field in outcome if field.name == "repeats"]

    ((cell, other_cell),) = repeats_cells(runs[1])
    assert (numbers(cell), other_cell) == (["1", "3"], NO_VALUE)
    assert [numbers(cell) for cell, _ in repeats_cells(*runs[:2])] == [["2", "3"]] and repeats_cells(*runs) == []


def test_other_numbers_of_devices_ask_for_caution() -> None:
    two = repeats(900, first=10, devices=2, layout=Layout(data=2))
    outcome = check_comparability([side_of("A", repeats(1000)), side_of("B", two)])
    (devices,) = (field for field in outcome.cautions if field.name == "devices")
    assert [cell.split(" x ") for cell in devices.cells] == [["1", "1"], ["1", "2"]]
