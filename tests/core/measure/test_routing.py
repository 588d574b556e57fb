"""The routing of a mixture: read from events, checked like tokens, and shown as the load of each expert."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.raw_facts import ExpertShare, GradientShare, StepRecord
from levelfield.measure.routing import (
    auxiliary_reasons,
    fewest_changed_choices,
    routing_reasons,
    routing_steps,
    sum_expert_shares,
)
from levelfield.measure.weights import gradient_names, gradient_reasons
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.words import WIDTH
from levelfield.rundir.directory import read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.case import Work
from levelfield.specs.paths import RunPaths
from recorded_runs import Event, change_steps, edit, record_run, tamper
from report_rows import terminal_rows

MIXTURES = Path(__file__).parents[1] / "mixtures"


@pytest.fixture(scope="module")
def recorded_mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture") / "20260102T030405Z_tiny_mixture_fake_fake_abcdef"
    record_run(RunPaths(folder), MIXTURES, "tiny_mixture")
    return folder


@pytest.fixture
def mixture(recorded_mixture: Path, tmp_path: Path) -> RunPaths:
    return RunPaths(Path(shutil.copytree(recorded_mixture, tmp_path / "runs" / recorded_mixture.name)))


@pytest.fixture
def work(mixture: RunPaths) -> Work:
    return read_plan(mixture).work


def change_experts(run: RunPaths, change: Callable[[Event], object], step: int = 7, rank: int = 1) -> None:
    """Change rank 1's experts event of one step in place."""

    def apply(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "experts" and event["step"] == step:
                change(event)
        return events

    edit(run.events / f"rank{rank}.jsonl", apply)


def reasons(run: RunPaths) -> str:
    return "; ".join(collect(run).status.reasons)


def test_a_whole_mixture_is_valid_and_shows_its_load(mixture: RunPaths) -> None:
    result = collect(mixture)
    load = result.experts
    assert result.status.word == "valid" and load is not None
    assert (load.over, load.steps, [layer.layer for layer in load.layers]) == ("window", 10, [1, 2])
    routing = sum_expert_shares(read_raw(mixture).experts)
    assert sorted(routing) == list(range(1, 13)) and all(sum(c) == 2 * 64 for s in routing.values() for c in s.values())
    window = [sum(routing[step][1][expert] for step in range(3, 13)) for expert in range(4)]
    assert load.layers[0].largest == max(window) / 1280 and load.layers[0].least == min(window) / 1280
    assert load.layers[0].imbalance == pytest.approx(max(window) / 320)
    assert load.layers[1].imbalance_last == pytest.approx(max(routing[12][2]) / 32)
    assert load.never_chosen == 0
    assert load.auxiliary_first == pytest.approx(0.02 * 0.99) and load.auxiliary_last == pytest.approx(0.02 * 0.99**12)


def test_the_active_parameters_stand_beside_all_of_them_and_in_the_formulas(mixture: RunPaths) -> None:
    result = collect(mixture)
    unused = 2 * 2 * (2 * 16 * 32 + 32 + 16)  # two layers, two experts that a token does not use
    assert result.active_parameters == result.parameters - unused
    counted = {u.formula: u.parameters for u in result.utilisation}
    assert counted["palm/1"] == counted["6n/1"] == result.active_parameters and counted["megatron/1"] is None


def test_a_model_without_experts_has_no_load(run: RunPaths) -> None:
    result = collect(run)
    assert result.experts is None and result.active_parameters is None
    assert {u.formula: u.parameters for u in result.utilisation}["palm/1"] == result.parameters


def test_the_report_shows_the_load(mixture: RunPaths) -> None:
    result = collect(mixture)
    text = run_report(result, read_plan(mixture))
    assert result.active_parameters is not None and f"{result.active_parameters:,} active" in text
    assert "0.0198 -> " in text, "the auxiliary loss"
    assert "auxiliary loss" in terminal_rows(result)["experts"]
    assert max(map(len, "\n".join(result_lines(result)).splitlines())) <= WIDTH


def move(event: Event) -> None:
    """A token takes another expert: the sum stays."""
    event["tokens"]["1"][0] += 1
    event["tokens"]["1"][1] -= 1


def test_a_moved_choice_is_valid_and_counted(mixture: RunPaths) -> None:
    before = sum_expert_shares(read_raw(mixture).experts)
    change_experts(mixture, move)
    after = sum_expert_shares(read_raw(mixture).experts)
    assert collect(mixture).status.word == "valid"
    assert (
        fewest_changed_choices(after[7][1], before[7][1]) == 1
        and fewest_changed_choices(after[7][2], before[7][2]) == 0
    )


FAULTS: dict[str, tuple[Callable[[Event], object], str]] = {
    "a token less": (lambda e: e["tokens"]["1"].__setitem__(0, e["tokens"]["1"][0] - 1), "127 choices, expected 128"),
    "counted by every rank": (lambda e: e["tokens"].update({"1": [32] * 4}), "layer 1: 192 choices, expected 128"),
    "one choice for two": (lambda e: e["tokens"].update({"1": [8] * 4}), "layer 1: 96 choices, expected 128"),
    "negative": (lambda e: e["tokens"].update({"1": [-1, 33, 16, 16]}), "rank 1: a count of -1, expected 0 or more"),
    "an expert too few": (lambda e: e["tokens"].update({"1": [32, 16, 16]}), "3 counts, expected 4"),
    "a dense layer": (lambda e: e["tokens"].update({"0": [16] * 4}), "layer 0, rank 1: the layer is no mixture"),
    "a layer too many": (lambda e: e["tokens"].update({"3": [16] * 4}), "layer 3, rank 1: the layer is no mixture"),
    "a negative layer": (lambda e: e["tokens"].update({"-1": [16] * 4}), "layer -1, rank 1: the layer is no mixture"),
    "a layer missing": (lambda e: e["tokens"].pop("2"), "step 7, layer 2: 64 choices, expected 128"),
    "another step": (lambda e: e.update(step=6), "step 6, layer 1, rank 1: recorded 2 times"),
    "a step after the end": (lambda e: e.update(step=13), "step 13: its routing was not to be recorded"),
    "nan": (lambda e: e["tokens"].update({"1": [float("nan"), 32, 16, 16]}), "an experts event is damaged"),
    "nan as a word": (lambda e: e["tokens"].update({"1": ["nan", 32, 16, 16]}), "an experts event is damaged"),
    "a part of a token": (lambda e: e["tokens"].update({"1": [16.5, 15.5, 16, 16]}), "an experts event is damaged"),
    "true for one": (lambda e: e["tokens"].update({"1": [True, 31, 16, 16]}), "an experts event is damaged"),
    "null": (lambda e: e["tokens"].update({"1": None}), "an experts event is damaged"),
    "a list for layers": (lambda e: e.update(tokens=[[16] * 4]), "an experts event is damaged"),
    "a layer's name": (lambda e: e["tokens"].update({"layers.1": [16] * 4}), "an experts event is damaged"),
    "the layer twice": (lambda e: e["tokens"].update({"01": [16] * 4}), "an experts event is damaged"),
    "beyond all bounds": (lambda e: e["tokens"].update({"1": [10**400, 0, 0, 0]}), "an experts event is damaged"),
    "without its step": (lambda e: e.pop("step"), "an experts event is damaged"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_the_counts_makes_the_run_invalid_and_leaves_no_load(name: str, mixture: RunPaths) -> None:
    change, words = FAULTS[name]
    change_experts(mixture, change)
    result = collect(mixture)
    assert result.status.word == "invalid" and words in reasons(mixture)
    assert result.experts is None and result.throughput is None


def test_a_doubled_event_and_a_lost_one_are_found(mixture: RunPaths) -> None:
    def doubled(events: list[Event]) -> list[Event]:
        return [e for event in events for e in [event] * (2 if event["event"] == "experts" else 1)]

    def lost(events: list[Event]) -> list[Event]:
        return [e for e in events if e["event"] != "experts"]

    path = mixture.events / "rank1.jsonl"
    for change, file, words in (
        (doubled, path, "routing: step 1, layer 1, rank 1: recorded 2 times"),
        (lost, path, "routing: step 1, layer 1: 64 choices, expected 128"),
        (lost, mixture.events / "rank0.jsonl", "routing: step 1, layer 1: 0 choices, expected 128"),
    ):
        edit(file, change)
        assert words in reasons(mixture)


def test_a_choice_moved_after_the_run_breaks_the_seal(mixture: RunPaths) -> None:
    def apply(events: list[Event]) -> list[Event]:
        move(next(event for event in events if event["event"] == "experts"))
        return events

    tamper(mixture.events / "rank1.jsonl", apply)
    assert collect(mixture).status.word == "tampered"


def test_experts_of_a_dense_model_are_a_fault(run: RunPaths) -> None:
    event = {"event": "experts", "step": 1, "tokens": {"0": [64]}}
    edit(run.events / "rank1.jsonl", lambda events: [*events[:3], event, *events[3:]])
    assert reasons(run).startswith("routing: ")
    assert "no experts" in reasons(run)


AUXILIARY: dict[str, tuple[object, str]] = {
    "nan": ("nan", "auxiliary loss: step 7: it is nan"),
    "inf": ("inf", "auxiliary loss: step 7: it is inf"),
    "negative": (-0.02, "auxiliary loss: step 7: it is -0.02"),
    "by 1 %": (0.02 * 0.99**7 * 1.01, "auxiliary loss: step 7: ranks disagree"),
    "a text": ("low", "a step event is damaged"),
}


@pytest.mark.parametrize("name", AUXILIARY)
def test_each_fault_of_the_auxiliary_loss_makes_the_run_invalid(name: str, mixture: RunPaths) -> None:
    value, words = AUXILIARY[name]
    change_steps(mixture, lambda event: event.update(auxiliary_loss=value) if event["step"] == 7 else None)
    assert collect(mixture).status.word == "invalid" and words in reasons(mixture)


def test_an_auxiliary_loss_must_be_there_exactly_where_the_case_has_one(work: Work) -> None:
    silent = [StepRecord(rank=0, step=step, end_ns=step, loss=1.0) for step in (1, 2)]
    assert [reason.partition(": ")[0] for reason in auxiliary_reasons(silent, work.model)] == ["step 1", "step 2"]
    dense = work.model.model_copy(update={"experts": None})
    assert auxiliary_reasons(silent, dense) == []
    strange = [StepRecord(rank=0, step=3, end_ns=3, auxiliary_loss=0.1)]
    (reason,) = auxiliary_reasons(strange, dense)
    assert reason.startswith("step 3: 0.1")


def test_a_large_mixture_records_its_gradient_steps_only(work: Work) -> None:
    experts = work.model.experts
    assert experts is not None and routing_steps(work) == tuple(range(1, 13))
    many = work.model_copy(
        update={
            "model": work.model.model_copy(update={"experts": experts.model_copy(update={"count": 400})}),
            "evidence": work.evidence.model_copy(update={"gradient_steps": (1, 2)}),
        }
    )
    assert routing_steps(many) == (1, 2)
    choices = many.training.tokens_per_step * 2
    shares = [ExpertShare(0, step, layer, (choices, *[0] * 399)) for step in (1, 2) for layer in (1, 2)]
    assert routing_reasons(shares, many) == []


def test_each_routed_expert_has_its_own_gradient_norm(work: Work) -> None:
    names = list(gradient_names(work))
    assert "layers.1.mlp.experts.up.weight[3]" in names and "layers.1.mlp.experts.up.weight" not in names
    assert "layers.0.mlp.up.weight" in names and "layers.1.mlp.router.weight" in names
    shares = [GradientShare(0, 1, name, 1.0) for name in names]
    whole = [StepRecord(0, 1, 1, grad_norm=len(names) ** 0.5)]
    assert gradient_reasons(shares, whole, work) == []
    lost = "layers.2.mlp.experts.down.weight[0]"
    (reason,) = gradient_reasons([share for share in shares if share.name != lost], whole, work)
    assert reason.startswith("step 1: ") and reason.endswith(f" {lost}")
    odd = [*shares, GradientShare(0, 1, "layers.1.mlp.experts.up.weight", 0.0)]
    assert "unknown parameter" in gradient_reasons(odd, whole, work)[0]


@pytest.mark.parametrize(
    ("counts", "others", "changed"),
    [((4, 4), (4, 4), 0), ((5, 3), (4, 4), 1), ((8, 0, 0), (0, 4, 4), 8), ((4, 4), (4, 4, 4), 12), ((5, 4), (4, 4), 1)],
)
def test_changed_choices_are_half_the_differences(
    counts: tuple[int, ...], others: tuple[int, ...], changed: int
) -> None:
    assert fewest_changed_choices(counts, others) == changed == fewest_changed_choices(others, counts)
