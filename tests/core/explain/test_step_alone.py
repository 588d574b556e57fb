"""What the parts of a constructed step take alone, and events that cannot be right."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
from levelfield.explain.step_alone import (
    ChipRates,
    least_seconds,
    message_seconds,
    parse_alone_times,
    product_flops,
    step_alone,
)
from levelfield.explain.step_division import RankLayout, divide_waits, mean_parts, rank_parts
from levelfield.measure.step_timeline import add_arguments, build_timeline
from levelfield.specs.step_parts import COMMUNICATION, PARTS, StepAlone

LAYOUT = RankLayout(1, is_plain=True)
# 1000 FLOPs of 4-byte values at 1 GFLOP/s, and 1 GB/s: a product of [10, 5] and [5, 10] takes 1 us, its values 0.8 us
CHIP = ChipRates({"float": 1e9}, 1e9, 1e9, ranks_per_node=2, peak_text="1 GFLOP/s", memory_text="1 GB/s")
PRODUCT = {"name": "aten::mm", "dtype": "float", "dims": [[10, 5], [5, 10]], "seconds": 50e-6,
           "given": [["float", [10, 5]], ["float", [5, 10]]], "results": [["float", [10, 10]]]}  # fmt: skip
SUM = {"name": "aten::add", "dtype": "float", "dims": [[1000], [1000]], "seconds": 20e-6,
       "given": [["float", [1000]], ["float", [1000]]], "results": [["float", [1000]]]}  # fmt: skip
MESSAGE = {"kind": "all-reduce", "bytes": 4000, "ranks": [0, 1], "seconds": 30e-6, "count": 2}
EVENT: dict[str, Any] = {
    "operations": [PRODUCT, SUM],
    "copy": {"bytes": 1e9, "seconds": 0.5},
    "messages": [MESSAGE],
    "left_out": [],
}


def operation(name: str, start: float, end: float, *dims: list[int]) -> dict[str, Any]:
    args = {"Input Dims": [*dims, []], "Input type": ["float"] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": end - start, "tid": 1, "args": args}


def trace() -> dict[str, Any]:
    """A step of 1000 us: two products in the mlp, one of other sizes, a sum in a norm, and an all-reduce."""
    other = [operation("lf/elementwise/layers.1.norm", 310, 370), operation("aten::add", 320, 360, [1000], [1000])]
    return {
        "traceEvents": [
            operation("lf/step", 0, 1000),
            operation("lf/mlp/layers.0.mlp", 0, 500),
            operation("aten::linear", 0, 110, [10, 5], [10, 5]),
            operation("aten::mm", 10, 100, [10, 5], [5, 10]),
            operation("aten::add", 50, 60, [1000], [1000]),  # within the product: it counts there
            operation("aten::mm", 100, 210, [10, 5], [5, 10]),
            operation("aten::mm", 220, 300, [7, 5], [5, 10]),
            operation("lf/elementwise/layers.0.norm", 500, 600),
            operation("aten::add", 500, 600, [1000], [1000]),
            *({**event, "tid": 2} for event in other),  # of a thread whose time no slice has
            {**operation("gloo:all_reduce", 600, 800), "tid": 3},
        ]
    }


def alone_of(event: dict[str, Any], chip: ChipRates = CHIP) -> StepAlone:
    alone = parse_alone_times(event)
    steps = [divide_waits({0: build_timeline(trace(), alone.seconds)}, LAYOUT)]
    parts = mean_parts(rank_parts(steps, LAYOUT), steps)
    return step_alone(steps, parts, {0: alone}, chip)


def test_each_part_has_what_its_operations_take_in_place_alone_and_at_the_rates_of_the_chip() -> None:
    step = alone_of(EVENT)
    by_part = {part.part: part for part in step.parts}
    mlp, norm, reduce = by_part["mlp"], by_part["elementwise"], by_part["all-reduce"]
    assert (mlp.in_place_ms, mlp.alone_ms, mlp.allowed_ms) == pytest.approx((0.2, 0.1, 0.002))
    assert mlp.share == pytest.approx(200 / 290), "the product of other sizes was not repeated"
    assert (norm.in_place_ms, norm.alone_ms, norm.allowed_ms) == pytest.approx((0.1, 0.02, 0.012))
    assert (reduce.in_place_ms, reduce.alone_ms, reduce.allowed_ms) == pytest.approx((0.2, 0.06, 0.008))
    assert set(by_part) == {"mlp", "elementwise", "all-reduce"}, "a part without a probe has no row"
    assert step.copy_bytes_per_second == 2e9 and step.memory == "1 GB/s" and not step.missing
    slow_in_place, slow_alone = step.findings
    assert re.match(r"all-reduce .* 0\.1 ms more in place .*\(0\.2 and 0\.1 ms\)", slow_in_place)
    assert re.match(r"mlp .* 0\.1 ms more alone .*\(0\.1 and 0\.0 ms\)", slow_alone)


def test_a_chip_without_rates_is_held_to_the_copy_alone() -> None:
    allowed = {part.part: part.allowed_ms for part in alone_of(EVENT, ChipRates()).parts}
    assert allowed["elementwise"] == pytest.approx(0.006) and allowed["all-reduce"] is None
    without = copy.deepcopy(EVENT)
    without["copy"] = None
    assert {part.allowed_ms for part in alone_of(without, ChipRates()).parts} == {None}


def test_operations_that_were_not_repeated_are_in_one_sentence_for_each_reason() -> None:
    large, late = "larger than what is repeated", "no time was left"
    left_out = [[f"aten::mm: {large}", f"{name}: {large}"] for name in ("b::c", "a")]
    left_out.append([f"k{number:02}: {late}" for number in range(14)])
    ranks = dict(enumerate(parse_alone_times({"left_out": operations}) for operations in left_out))
    missing = step_alone([divide_waits({0: build_timeline(trace())}, LAYOUT)], [], ranks, CHIP).missing
    names = ", ".join(f"k{number:02}" for number in range(12))
    operations = {f"({large})": "a, aten::mm, b::c", f"({late})": f"{names} and 2 more"}
    assert [sentence.partition(": ")[2] for sentence in missing] == list(operations.values())
    assert [start for start, sentence in zip(operations, missing, strict=True) if start not in sentence] == []


# How many times too long the product's time is, the parts that are left, and what the reader is told.
IMPLAUSIBLE: dict[str, tuple[float, set[str], str]] = {
    "milliseconds for seconds": (
        1e3,
        {"elementwise", "all-reduce"},
        "mlp: found 100 ms alone, expected at most 5 times the 0.2 ms in place, so it is left out; run it again on an "
        "idle machine",
    ),
    "faster than the peak": (
        1e-3,
        set(),
        "aten::mm alone: found 0.02 TFLOP/s, expected at most 3 times the peak, 0.001, so nothing is shown; run it "
        "again, and measure the peak (--probe)",
    ),
}


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_a_time_in_another_unit_is_no_measurement(name: str) -> None:
    factor, parts, sentence = IMPLAUSIBLE[name]
    event = copy.deepcopy(EVENT)
    event["operations"][0]["seconds"] *= factor
    alone = alone_of(event)
    assert {part.part for part in alone.parts} == parts
    assert alone.missing == (sentence,)


def test_a_product_has_the_peak_of_what_is_multiplied_and_not_of_what_it_is_added_to() -> None:
    """The head's gradient is float32, and its products are of 16 bits."""
    halves = [["c10::BFloat16", [10, 5]], ["c10::BFloat16", [5, 10]]]
    added = {"name": "aten::addmm", "dtype": "float", "dims": [[10, 10], [10, 5], [5, 10]], "seconds": 50e-6,
             "given": [["float", [10, 10]], *halves], "results": [["float", [10, 10]]]}  # fmt: skip
    alone = parse_alone_times({"operations": [added]})
    (call,) = alone.seconds
    chip = ChipRates({"float": 1e9, "c10::BFloat16": 1e10})
    assert least_seconds(call, alone, chip, None) == pytest.approx(1e-7)
    assert least_seconds(call, alone, ChipRates({"float": 1e9}), None) == 0


def test_another_shape_and_a_missing_probe_give_no_time() -> None:
    other = copy.deepcopy(EVENT)
    other["operations"][0]["dims"] = [[10, 5], [5, 11]]
    (mlp,) = [part for part in alone_of(other).parts if part.part == "mlp"]
    assert (mlp.in_place_ms, mlp.alone_ms) == pytest.approx((0.01, 0.02)), "only the sum within the product is known"
    none = alone_of({**EVENT, "operations": [], "messages": []})
    assert not none.parts and not none.findings


@pytest.mark.parametrize(
    ("where", "value"),
    [("messages", 0), *((key, x) for key in ("operations", "messages") for x in (math.nan, math.inf, -1e-3))],
)
def test_a_time_that_is_no_time_is_refused(value: float, where: str) -> None:
    wrong = copy.deepcopy(EVENT)
    wrong[where][0]["seconds"] = value
    with pytest.raises(ValueError, match=rf"alone: found {value}"):
        parse_alone_times(wrong)


def test_products_and_attention_are_counted() -> None:
    def sizes(*dims: list[int]) -> list[tuple[str, list[int]]]:
        return [("float", size) for size in dims]

    product = sizes([10, 20])
    assert product_flops("aten::mm", sizes([10, 5], [5, 20]), product) == 2 * 10 * 5 * 20
    assert product_flops("aten::addmm", sizes([20], [10, 5], [5, 20]), product) == 2 * 10 * 5 * 20
    assert product_flops("levelfield::product", sizes([2, 5, 5], [20, 5], [20]), sizes([2, 5, 20])) == 2 * 10 * 5 * 20
    assert product_flops("aten::add", sizes([10, 20], [10, 20]), product) == 0
    name, one = "aten::_scaled_dot_product_flash_attention", [2, 4, 64, 16]
    forward = 4 * 2 * 4 * 64 * 64 * 16 / 2
    assert product_flops(name, sizes(one, one, one), sizes(one)) == forward
    assert product_flops(f"{name}_backward", sizes(one, one, one, one), sizes(one)) == 2.5 * forward


def test_a_message_takes_its_share_of_the_links_of_one_node() -> None:
    assert message_seconds("all-gather", 4e9, (0, 1), CHIP) == pytest.approx(2.0)
    assert message_seconds("all-reduce", 4e9, (0, 1), CHIP) == pytest.approx(4.0)
    assert message_seconds("all-to-all", 4e9, (0, 1), CHIP) == pytest.approx(2.0)
    assert message_seconds("all-reduce", 4e9, (0, 2), CHIP) is None


def bare(noted: dict[str, Any]) -> dict[str, Any]:
    """The trace of a recorder that notes no arguments."""
    return {"traceEvents": [{**event, "args": {"Ev Idx": 1}} for event in noted["traceEvents"]]}


def test_arguments_come_from_the_step_that_notes_them() -> None:
    alone = parse_alone_times(EVENT)
    noted = {"traceEvents": trace()["traceEvents"][::-1]}
    line = build_timeline(add_arguments(bare(trace()), noted), alone.seconds)
    expected = build_timeline(trace(), alone.seconds)
    assert (line.calls, line.slices) == (expected.calls, expected.slices)
    assert line.calls and not build_timeline(bare(trace()), alone.seconds).calls


def test_a_step_that_calls_an_operation_more_often_lends_it_no_arguments() -> None:
    alone = parse_alone_times(EVENT)
    noted = trace()
    noted["traceEvents"].append(operation("aten::mm", 605, 610, [7, 5], [5, 10]))
    calls = build_timeline(add_arguments(bare(trace()), noted), alone.seconds).calls
    assert {call[0] for _part, call in calls} == {"aten::add"}
    damaged = {"traceEvents": [{"name": "aten::mm", "cat": "cpu_op", "ts": 1, "args": None}]}
    assert not build_timeline(add_arguments(bare(trace()), damaged), alone.seconds).calls


def test_an_operation_without_a_kernel_is_left_out() -> None:
    """On an H100 torch called is_pinned, which runs no kernel."""
    without_kernel = {**SUM, "name": "aten::is_pinned", "seconds": 0.0}
    assert parse_alone_times({**EVENT, "operations": [PRODUCT, SUM, without_kernel]}) == parse_alone_times(EVENT)


def test_messages_of_gloo_lend_their_sizes_by_their_order() -> None:
    """Each has one of many threads, which differs from step to step."""

    def message(start: float, thread: int, *dims: list[int]) -> dict[str, Any]:
        return {**operation("gloo:send", start, start + 10, *dims), "tid": thread}

    noted = {"traceEvents": [message(0, 5, [7]), message(20, 6, [8])]}
    messages = [{**message(start, thread), "args": {}} for start, thread in ((30, 6), (50, 9))]
    line = build_timeline(add_arguments({"traceEvents": [operation("lf/step", 0, 100), *messages]}, noted))
    assert [message.size for message in line.messages] == ["[[7], []]", "[[8], []]"]


def test_messages_are_parts_of_a_step() -> None:
    assert set(COMMUNICATION) <= set(PARTS)
