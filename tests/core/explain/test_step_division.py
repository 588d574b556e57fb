"""A constructed trace of two ranks on CUDA devices, in microseconds, and what its step is divided into."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from levelfield.explain.step_division import (
    MessageGroups,
    RankLayout,
    StepTime,
    clock_origins,
    divide_waits,
    kernel_kind,
    late_ranks,
    mean_kernels,
    mean_parts,
    median_step_timeline,
    rank_parts,
    recording_overhead,
    step_warnings,
    uneven_layers,
)
from levelfield.measure.step_timeline import Timeline, build_timeline, message_kind
from levelfield.specs.step_parts import BUBBLE, COMMUNICATION, MAX_CELLS, MAX_LINES, WAITING, RankParts

MAIN, BACKWARD, STREAM, MESSAGES = 1, 2, 7, 20  # threads and streams
ONE_GROUP = RankLayout(2, is_plain=True)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(
    name: str, start: float, end: float, category: str = "cpu_op", tid: int = MAIN, **args: Any
) -> dict[str, Any]:
    args = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "ts": 5e9 + start, "dur": end - start, "tid": tid, "args": args}


def launched(number: int, host: float, name: str, start: float, end: float, tid: int = MAIN, stream: int = STREAM,
             **args: Any) -> list[dict[str, Any]]:  # fmt: skip
    """A launch on the host, and its kernel."""
    return [
        event("cudaLaunchKernel", host, host + 2, "cuda_runtime", tid, correlation=number),
        event(name, start, end, "kernel", stream, correlation=number, **args),
    ]


def trace(shift: float = 0.0, all_reduce: tuple[float, float] = (700.0, 900.0), host: str = "a") -> dict[str, Any]:
    """One rank's step of 1000 us. shift: of all times, as another machine's clock has it."""
    group: dict[str, Any] = {"Process_Group_Ranks": "[0, 1]", "Collective_name": "allreduce", "In_msg_nelems": 4096}
    events = [
        event("lf/step", 0, 1000),
        event("lf/launch", 0, 900),
        event("lf/attention projections/layers.0.attention.query", 10, 40),
        event("aten::mm", 12, 30, Sequence_number=5, Input_type=["float", "float"]),
        *launched(1, 14, "sm80_xmma_gemm_f32f32_tf32f32_f32_nn", 100, 300),
        event("lf/attention core/layers.0.attention", 50, 90),
        event("aten::_scaled_dot_product_flash_attention", 52, 80, Sequence_number=6, Input_type=["c10::BFloat16"]),
        *launched(2, 55, "pytorch_flash::flash_fwd_kernel<...>", 320, 400),
        event("autograd::engine::evaluate_function: MmBackward0", 150, 260, tid=BACKWARD, Sequence_number=5,
              Fwd_thread_id=1),
        event("lf/elementwise/layers.0.attention_norm", 155, 175, tid=BACKWARD),  # repeated within the backward pass
        event("aten::rms_norm", 158, 170, tid=BACKWARD, Sequence_number=90, Fwd_thread_id=0),
        *launched(3, 160, "rms_norm_kernel", 400, 450, BACKWARD),
        event("aten::mm", 200, 220, tid=BACKWARD, Input_type=["float"]),
        *launched(4, 205, "sm80_xmma_gemm_f32f32_tf32f32_f32_nt", 450, 650, BACKWARD),
        *launched(5, 230, REDUCE, *all_reduce, tid=BACKWARD, stream=MESSAGES, **group),
        *launched(6, 300, "stray_kernel", 640, 660, stream=8),  # it begins beside another one
        event("lf/input", 900, 960),
        event("lf/finish", 960, 1000),
        event("lf/optimizer/optimizer.step", 500, 600),
        *launched(7, 550, "multi_tensor_apply_kernel", 850, 950),
    ]  # fmt: skip
    for started in events:
        started["ts"] += shift
    return {"traceEvents": events, "baseTimeNanoseconds": 10**18, "host_name": host}


def ms_by_part(line: Timeline) -> dict[str, float]:
    parts: dict[str, float] = {}
    for piece in line.slices:
        parts[piece.part] = parts.get(piece.part, 0.0) + piece.ms
    return {part: round(ms, 6) for part, ms in parts.items()}


def both(**of_the_second: Any) -> tuple[RankParts, ...]:
    step = {0: build_timeline(trace()), 1: build_timeline(trace(**of_the_second))}
    return rank_parts([divide_waits(step, ONE_GROUP)], ONE_GROUP)


def time_of(rank: RankParts, part: str) -> float:
    return round(sum(row.time.mean for row in rank.parts if row.part == part), 6)


def test_the_time_of_a_device_goes_to_the_module_that_launched_its_kernels() -> None:
    line = build_timeline(trace())
    assert line.has_device and line.ms == pytest.approx(1.0)
    assert ms_by_part(line) == {
        "host": 0.1 + 0.02 + 0.04 + 0.0,  # before the first kernel, between two, and before the message
        "attention projections": 0.4,
        "attention core": 0.08,
        "elementwise": 0.05,
        "unexplained": 0.01,
        "all-reduce": 0.15,  # from 700 to 850: the optimizer's kernel runs beside the rest
        "optimizer": 0.1,
        "input": 0.01,
    } | {"host": pytest.approx(0.2)}
    assert sum(piece.ms for piece in line.slices) == pytest.approx(line.ms)
    ends = [piece.end for piece in line.slices]
    assert [piece.start for piece in line.slices[1:]] == pytest.approx(ends[:-1]), "there is a gap or an overlap"


def test_a_backward_kernel_belongs_to_its_forward_and_a_repeated_one_is_recomputation() -> None:
    phases = {(kernel.where, kernel.phase): kernel.part for kernel in build_timeline(trace()).kernels}
    assert phases["layers.0.attention.query", "backward"] == "attention projections"
    assert phases["layers.0.attention_norm", "recompute"] == "elementwise"
    assert ("layers.0.attention_norm", "forward") not in phases


def test_what_runs_beside_other_work_is_overlapped() -> None:
    (rank, _) = both()
    (reduce,) = [row for row in rank.parts if row.part == "all-reduce"]
    assert (reduce.time.mean, reduce.overlapped_ms) == pytest.approx((0.15, 0.05))


def test_a_wait_ends_when_the_last_rank_comes_and_the_transfer_begins() -> None:
    first, second = both(all_reduce=(780.0, 900.0))
    assert (time_of(first, WAITING), time_of(first, "all-reduce")) == pytest.approx((0.08, 0.07))
    assert (time_of(second, WAITING), time_of(second, "all-reduce")) == pytest.approx((0.0, 0.07))
    (wait,) = first.waited_for
    (late,) = late_ranks((first, second))
    assert wait.rank == late.rank == 1
    assert (wait.ms, late.waited_ms) == pytest.approx((0.08, 0.08))


def drawn(line: str, letter: str) -> float:
    """The share of a rank's line that a letter takes."""
    return line.count(letter) / MAX_CELLS


def test_a_timeline_has_the_parts_at_their_times_on_one_clock() -> None:
    step = {0: build_timeline(trace()), 1: build_timeline(trace(all_reduce=(780.0, 900.0), shift=200.0))}
    drawing = median_step_timeline([divide_waits(step, ONE_GROUP)])
    first, second = (line.cells for line in drawing.lines)
    letter: dict[str, str] = {part: chr(ord("a") + place) for place, part in enumerate(drawing.parts)}
    assert drawing.ms == pytest.approx(1.2) and len(first) == len(second) == MAX_CELLS
    assert first.strip(" ") == first[:400] and second.strip(" ") == second[80:], "0.2 ms of 1.2 ms before it begins"
    at = round(0.2 / 1.2 * MAX_CELLS)
    assert first[at] == letter["attention projections"] and second[at + 80] == letter["attention projections"]
    projections, repeated = letter["attention projections"], letter["elementwise"].upper()
    assert drawn(first, projections) == pytest.approx(0.4 / 1.2, abs=0.01)
    assert drawn(first, repeated) == pytest.approx(0.05 / 1.2, abs=0.01) and letter["elementwise"] not in first
    assert drawn(first, letter[WAITING]) == pytest.approx(0.15 / 1.2, abs=0.01) and letter[WAITING] not in second


def test_a_timeline_is_the_middle_step_of_late_ranks_and_some_others() -> None:
    one = build_timeline(trace())
    slow = replace(one, ms=9.0)
    many = [divide_waits({0: line}, ONE_GROUP) for line in (slow, one, replace(one, ms=2.0))]
    assert median_step_timeline(many).ms == 2.0
    ranks = {rank: replace(one, messages=(), slices=one.slices[:1]) for rank in range(100)}
    lines = [line.rank for line in median_step_timeline([divide_waits(ranks, ONE_GROUP)], late=[99]).lines]
    assert len(lines) <= MAX_LINES and lines[:3] == [0, 7, 14] and lines[-1] == 99


def test_another_stage_is_a_bubble_and_another_clock_is_shifted() -> None:
    step = {0: build_timeline(trace()), 1: build_timeline(trace(all_reduce=(780.0, 900.0)))}
    stages = RankLayout(1, is_plain=True)
    first, _ = rank_parts([divide_waits(step, stages)], stages)
    assert (time_of(first, BUBBLE), time_of(first, WAITING)) == pytest.approx((0.08, 0.0))
    other_clock = both(all_reduce=(780.0, 900.0), shift=123456.0, host="b")
    for rank, same in zip(other_clock, both(all_reduce=(780.0, 900.0)), strict=True):
        assert time_of(rank, WAITING) == pytest.approx(time_of(same, WAITING), abs=1e-5)
    late, _ = both(all_reduce=(780.0, 900.0), shift=60.0)
    assert time_of(late, WAITING) == pytest.approx(0.14), "one machine has one clock"


def test_a_slow_transfer_whose_ends_are_apart_shifts_no_clock() -> None:
    line = build_timeline(trace())
    (message,) = line.messages

    def rank(host: str, clock: float, end: float) -> Timeline:
        messages = tuple(replace(message, start=a - clock, end=b - clock) for a, b in ((100, end), (300, 300.4)))
        return replace(line, messages=messages, host=host)

    step = {0: rank("a", 0, 225), 1: rank("b", 5000, 185)}  # 40 ms apart, of a transfer of 85 ms
    groups: MessageGroups = {("long",): [(0, 0), (1, 0)], ("short",): [(0, 1), (1, 1)]}
    assert clock_origins(step, groups)[1] == pytest.approx(5000)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda e: e.update(name="lf/attention project/x"), "attention projections"),
        (lambda e: e["args"].pop("correlation", None), "multi_tensor"),
        (lambda e: e.update(dur=e["dur"] * 1.01), "flash_fwd"),
    ],
    ids=["another word", "no correlation", "one per cent longer"],
)
def test_a_changed_trace_is_told_from_the_right_one(change: Callable[[dict[str, Any]], object], name: str) -> None:
    right, changed = ms_by_part(build_timeline(trace())), trace()
    for started in changed["traceEvents"]:
        if name in started["name"]:
            change(started)
    assert ms_by_part(build_timeline(changed)) != right


def test_a_span_outside_of_the_vocabulary_explains_nothing() -> None:
    misspelt = trace()
    for started in misspelt["traceEvents"]:
        started["name"] = started["name"].replace("lf/optimizer", "lf/optimiser")
    assert ms_by_part(build_timeline(misspelt))["unexplained"] == pytest.approx(0.11)


def test_a_trace_without_a_step_and_a_damaged_one_are_refused() -> None:
    damaged = trace()
    damaged["traceEvents"] = damaged["traceEvents"][1:]
    with pytest.raises(ValueError, match="'lf/step'"):
        build_timeline(damaged)
    for key, value in (("ts", "soon"), ("name", None)):
        damaged = copy.deepcopy(trace())
        damaged["traceEvents"][3][key] = value
        with pytest.raises((ValueError, TypeError, AttributeError)):
            build_timeline(damaged)


def test_the_mean_over_ranks_adds_up_to_the_step_and_recompute_is_counted() -> None:
    step = {0: build_timeline(trace()), 1: build_timeline(trace(all_reduce=(780.0, 900.0)))}
    steps = 2 * [divide_waits(step, ONE_GROUP)]
    mean = mean_parts(rank_parts(steps, ONE_GROUP), steps)
    assert sum(row.time.mean for row in mean) == pytest.approx(1.0)
    assert sum(row.recompute_ms for row in mean) == pytest.approx(0.05)
    for row in mean:
        assert row.time.low is not None and row.time.high is not None
        assert row.time.low <= row.time.mean <= row.time.high


def test_the_overhead_is_of_pairs_and_of_the_slowest_rank() -> None:
    times = [StepTime(rank, number, recorded, ms) for rank, number, recorded, ms in (
        (0, 1, False, 100.0), (1, 1, False, 90.0), (0, 1, True, 95.0), (1, 1, True, 105.0),
        (0, 2, False, 200.0), (0, 2, True, 206.0), (0, 3, True, 900.0),
    )]  # fmt: skip
    cost = recording_overhead(times)
    assert cost is not None and cost.ratio == pytest.approx(0.04) and cost.plain_ms.mean == pytest.approx(150.0)
    assert cost.low is not None and cost.high is not None and cost.low < 0.04 < cost.high
    assert recording_overhead(times[-1:]) is None and recording_overhead([]) is None
    lone = [time._replace(number=99) for time in times if not time.is_recorded][:1]
    assert lone and recording_overhead([*times, *lone]) == cost, "the recorder failed in the other step of the pair"


def test_kernels_have_kinds_and_slow_ones_get_warnings() -> None:
    ran = mean_kernels([build_timeline(trace())])
    assert {(kernel.name[:12], kernel.kind, kernel.dtype) for kernel in ran} >= {
        ("sm80_xmma_ge", "product", "fp32"), ("pytorch_flas", "flash", "bf16"),
    }  # fmt: skip
    names = {
        "pytorch_flash::flash_bwd_dq_dk_dv_loop_kernel": "flash",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "efficient",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop": "cudnn",
        "void (anonymous namespace)::softmax_warp_forward": "math",
        "aten::_softmax": "math",
        "nvjet_tst_128x256_64x4_2x1_v_bz_NNT": "product",
        "ampere_bf16_s16816gemm_bf16_128x128": "product",
        "aten::baddbmm": "product",
        "levelfield::product": "product",
        "aten::scaled_dot_product_attention": "other",
        "vectorized_elementwise_kernel": "other",
    }
    assert {name: kernel_kind(name) for name in names} == names
    steps = [divide_waits({0: build_timeline(trace())}, RankLayout(1, True))]
    mean = mean_parts(rank_parts(steps, RankLayout(1, True)), steps)
    (reduced,) = step_warnings(1.0, mean, ran)
    assert [word for word in ("TF32", "float32", ": 40%") if word not in reduced] == [], reduced
    by_math = tuple(kernel.model_copy(update={"kind": "math"}) if "flash" in kernel.name else kernel for kernel in ran)
    first = next(step_warnings(1.0, mean, by_math))
    assert [word for word in ("attention", "math: 8%", "flash_fwd_kernel") if word not in first] == [], first


def test_no_part_is_negative_or_not_a_number() -> None:
    for rank in both(all_reduce=(100.0, 2000.0)):
        assert all(math.isfinite(row.time.mean) and row.overlapped_ms >= 0 for row in rank.parts)
        assert sum(row.time.mean for row in rank.parts) == pytest.approx(rank.step.mean)


def test_one_layer_that_is_slower_than_the_others_is_named() -> None:
    def with_layers(*ms: float) -> tuple[RankParts, ...]:
        (rank, _) = both()
        places = [
            {"part": "mlp", "where": f"layers.{layer}.mlp", "phase": "forward", "ms": time, "count": 1}
            for layer, time in enumerate(ms)
        ]
        return (RankParts.model_validate({**rank.model_dump(), "places": places}),)

    (sentence,) = uneven_layers(with_layers(0.1, 0.3, 0.11, 0.1))
    assert [word for word in ("layers.1.mlp: 0.3 ms,", "0.1 ms in") if word not in sentence] == [], sentence
    assert not list(uneven_layers(with_layers(0.1, 0.12, 0.11)))
    assert not list(uneven_layers(with_layers(0.1, 0.3))), "of two layers none is the usual one"


def test_operations_that_tell_their_own_part_are_the_timeline_of_a_runtime_s_threads() -> None:
    """As a compiled program's: no launch of the host belongs to one of them."""

    def ran(name: str, start: float, end: float, args: dict[str, str]) -> dict[str, Any]:
        return {**event(name, start, end, "cpu_kernel", tid=5), "args": args}

    mlp = {"part": "mlp", "where": "layers.*.mlp", "phase": "backward", "dtype": "float"}
    message = {"message": "all-reduce.3", "Collective name": "all_reduce", "Process Group Ranks": "[0, 1]"}
    events = [
        event("lf/step", 0, 1000),
        event("lf/finish", 100, 1000),
        ran("fusion: product", 100, 400, mlp),
        ran("fusion: add", 300, 500, {**mlp, "part": "a part of nobody", "phase": "sideways"}),
        ran("all-reduce", 500, 900, message),
    ]
    line = build_timeline({"traceEvents": events})
    assert ms_by_part(line) == {"host": 0.2, "mlp": 0.3, "unexplained": 0.1, "all-reduce": 0.4}
    assert not line.has_device, "nothing of an accelerator was seen"
    first = line.kernels[0]
    assert (first.where, first.phase, first.dtype) == ("layers.*.mlp", "backward", "float")
    assert (line.messages[0].size, line.messages[0].ranks) == ("all-reduce.3", (0, 1))


@pytest.mark.parametrize("following", [None, (610.0, 630.0)])  # another message may begin and end before the late note
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (590, 0.49),  # the thread goes on when the message ends
        (640, 0.5),  # it went on before gloo's thread noted the end
        (800, 0.0),  # Python computes, and does not wait
    ],
)
def test_a_thread_waits_for_a_message_that_ends_about_when_it_goes_on(
    end: float, expected: float, following: tuple[float, float] | None
) -> None:
    events = [
        event("lf/step", 0, 1000),
        event("aten::mm", 10, 100),
        event("gloo:all_reduce", 90, end, tid=3),
        *([event("gloo:all_reduce", following[0], following[1], tid=4)] if following else []),
        event("aten::add_", 600, 990),
    ]
    line = build_timeline({"traceEvents": events})
    assert sum(piece.ms for piece in line.slices if piece.part == "all-reduce") == pytest.approx(expected)
    assert sum(piece.ms for piece in line.slices) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", COMMUNICATION)
def test_the_word_of_a_kind_is_that_kind(kind: str) -> None:
    """A kernel whose name tells nothing has the kind of the operation that launched it."""
    assert message_kind(kind) == kind
