"""Runs of a mixture whose choices of experts differ: what is noise, and what is a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from levelfield.judge.noise import limits_from, noise_of
from levelfield.judge.promotion import reference_from, with_noise
from levelfield.judge.verdict import training_of_reference
from levelfield.measure.alignment import AlignmentLimits, TrainingCurve, align
from levelfield.measure.rerouting import IN_FLOAT32, rerouting
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import NoiseRow, Reference
from recorded_runs import Event, edit, record_run

MIXTURES = Path(__file__).parents[1] / "mixtures"
STEPS = range(1, 21)
LAYERS, EXPERTS = (1, 2), 4
EVEN = (1000,) * EXPERTS  # of one layer: 4,000 choices, 8,000 of a step
ROUTING = {step: dict.fromkeys(LAYERS, EVEN) for step in STEPS}
EXPERT = "layers.1.mlp.experts.up.weight[3]"
OTHER = "layers.1.mlp.experts.up.weight[2]"
NORMS = {"layers.1.mlp.router.weight": 0.3, EXPERT: 0.4, OTHER: 0.5, "final_norm.weight": 1.0}
CURVE = {step: 5.0 * 0.95**step for step in STEPS}
REFERENCE = TrainingCurve(
    20, CURVE, dict.fromkeys(STEPS, 1.0), {1: NORMS, 10: NORMS}, {"work": "w"}, {"head.weight": (3.0, 1.0)}, ROUTING
)
LIMITS = AlignmentLimits(1e-6, 1e-4, 1e-6, "the test", 1e-5, IN_FLOAT32)
Change = Callable[[TrainingCurve], TrainingCurve]


def moved(number: int, first: int, last: int = 20, layer: int = 2) -> Change:
    """From step `first` to `last` so many tokens of a layer take expert 0 in place of expert 1."""

    def change(run: TrainingCurve) -> TrainingCurve:
        counts = {s: dict(layers) for s, layers in run.routing.items()}
        for step in range(first, last + 1):
            a, b, *rest = counts[step][layer]
            counts[step][layer] = (a + number, b - number, *rest)
        return replace(run, routing=counts)

    return change


def scaled(factor: float, first: int) -> Change:
    """Every loss from step `first` on is multiplied."""
    return lambda run: replace(run, losses={s: v * factor if s >= first else v for s, v in run.losses.items()})


def norm(factor: float, step: int, name: str = EXPERT) -> Change:
    def change(run: TrainingCurve) -> TrainingCurve:
        norms = {**run.gradients[step], name: run.gradients[step][name] * factor}
        return replace(run, gradients={**run.gradients, step: norms})

    return change


def weights(factor: float) -> Change:
    return lambda run: replace(run, weights={"head.weight": (3.0 * factor, 1.0)})


def run_with(*changes: Change) -> TrainingCurve:
    run = REFERENCE
    for change in changes:
        run = change(run)
    return run


def verdict(*changes: Change, limits: AlignmentLimits = LIMITS) -> tuple[str, str]:
    found = align(run_with(*changes), REFERENCE, limits)
    failed = [layer.name for layer in found.layers if layer.passed is False]
    return found.verdict, failed[0] if failed else ""


def test_final_weights_have_the_wider_limit_where_every_row_parts_early() -> None:
    """Then no row says how far they differ without a changed choice: such a run stays open, a parted one does not."""
    all_part = replace(LIMITS, weights=None)
    assert verdict(moved(1, 5), weights(1.1), limits=all_part) == ("aligned", "")
    assert verdict(moved(1, 5), weights(1.3), limits=all_part) == ("different", "final weights")
    assert verdict(weights(1.1), limits=all_part) == ("inconclusive", "")
    without_rows = AlignmentLimits(None, None, None, "no row", None, IN_FLOAT32)
    assert verdict(moved(1, 5), weights(1.1), limits=without_rows) == ("inconclusive", "")


def test_the_same_routing_is_aligned_and_its_layer_says_so() -> None:
    found = align(REFERENCE, REFERENCE, LIMITS)
    assert found.verdict == "aligned" and "routing" not in found.reason
    assert next(x.detail for x in found.layers if x.name == "routing") == "0 of 160,000 choices differ"


def test_a_dense_reference_has_no_routing_layer() -> None:
    dense = replace(REFERENCE, routing={})
    assert "routing" not in [layer.name for layer in align(dense, dense, LIMITS).layers]


def test_the_number_the_first_step_and_the_layer_are_named() -> None:
    found = rerouting(run_with(moved(3, 17)).routing, ROUTING)
    assert found.sentence == "12 of 160,000 choices differ, first at step 17 layer 2" and found.first == 17


HONEST: dict[str, tuple[Change, ...]] = {
    "a token jumps, and the loss with it": (moved(1, 17), scaled(1 + 2e-5, 17)),
    "a token jumps before a recorded gradient": (moved(1, 9), norm(1.04, 10), scaled(1 + 1e-4, 9), weights(1.01)),
    "many differ later": (moved(2, 5, 5), moved(200, 6), scaled(1 + 1.5e-4, 6), norm(1.05, 10)),
    "a token jumps in step 1": (moved(1, 1), scaled(1 + 2e-6, 1), norm(1.01, 1)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_a_jump_explains_is_aligned_and_the_reason_names_the_step(name: str) -> None:
    assert verdict(*HONEST[name]) == ("aligned", "")
    assert "whose routing differs" in align(run_with(*HONEST[name]), REFERENCE, LIMITS).reason


FAULTS: dict[str, tuple[tuple[Change, ...], str]] = {
    "the same loss without a jump": ((scaled(1 + 2e-5, 17),), "curve"),
    "a loss before the jump": ((moved(1, 17), scaled(1 + 2e-5, 16)), "curve"),
    "a gradient before the jump": ((moved(1, 9), norm(1.001, 1)), "gradients"),
    "a gradient of one expert is missing": ((norm(0.0, 1),), "gradients"),
    "a gradient of one expert is missing after a jump": ((moved(1, 9), norm(0.0, 10)), "gradients"),
    "two experts' gradients exchanged": (
        (norm(0.5 / 0.4, 1), norm(0.4 / 0.5, 1, OTHER)),
        "gradients",
    ),
    "many tokens change at once": ((moved(20, 17),), "routing"),
    "many tokens change at once in step 1": ((moved(20, 1),), "routing"),
    "a seventh of all differ later": ((moved(1, 4, 4), moved(1200 - 60, 5)), "routing"),
    "a loss far away after the jump": ((moved(1, 9), scaled(1.002, 9)), "curve"),
    "final weights without a jump": ((weights(1.01),), "final weights"),
    "final weights far away after a jump": ((moved(1, 9), weights(1.3)), "final weights"),
    "nan after the jump": ((moved(1, 9), norm(float("nan"), 10)), "gradients"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_layer(name: str) -> None:
    changes, layer = FAULTS[name]
    word, found = verdict(*changes)
    assert found == layer and word in ("different", "diverged")


def test_a_run_without_its_routing_is_inconclusive() -> None:
    assert verdict(lambda run: replace(run, routing={}))[0] == "inconclusive"


def test_a_layer_that_only_one_of_the_two_has_is_a_fault() -> None:
    def without(run: TrainingCurve) -> TrainingCurve:
        return replace(run, routing={s: {1: layers[1]} for s, layers in run.routing.items()})

    assert verdict(without) == ("different", "routing")


def test_in_sixteen_bits_the_routing_is_told_and_not_judged() -> None:
    limits = replace(LIMITS, routing=None, curve=1e-2)
    assert verdict(moved(500, 1), scaled(1.001, 1), limits=replace(limits, first_step=1e-2)) == ("aligned", "")
    assert verdict(moved(500, 1), scaled(1.02, 1), limits=replace(limits, first_step=1e-1)) == ("diverged", "curve")


# -- references and their noise


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    folder = tmp_path_factory.mktemp("mixture") / "20260102T030405Z_tiny_mixture_fake_fake_abcdef"
    record_run(RunPaths(folder), MIXTURES, "tiny_mixture")
    return folder, reference_from(RunPaths(folder), "the test")


def row(losses: Mapping[int, float], routing: Mapping[int, int], name: str = "row") -> NoiseRow:
    """A row of noise: the differences of the losses, and the changed choices."""
    every = [losses.get(step, 1e-7) for step in range(1, 13)]
    return NoiseRow(
        changed=f"fake 1.2.3, DP2TP1PP1, {name}", run_id=name, first_step=every[0], gradient=1e-6, curve=max(every),
        losses=tuple(every), gradients={1: {"mlp.up.weight": 1e-6}, 10: {"mlp.up.weight": 1e-2}},
        weights={"head.weight": {"norm": 1e-2}}, routing=dict(routing),
    )  # fmt: skip


def test_a_reference_holds_the_counts_and_is_read_back(promoted: tuple[Path, Reference], tmp_path: Path) -> None:
    _, reference = promoted
    assert sorted(reference.routing) == list(range(1, 13)) and all(sum(c[1]) == 128 for c in reference.routing.values())
    path = tmp_path / "reference.json"
    path.write_text(dump(reference))
    assert load(Reference, path) == reference
    assert training_of_reference(reference).routing == reference.routing


def test_a_dense_reference_keeps_its_digest(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    content = json.loads(dump(reference.model_copy(update={"routing": {}})))
    assert content.pop("routing") == {}
    content.pop("schema")
    assert Reference.model_validate(content).fingerprint() == reference.model_copy(update={"routing": {}}).fingerprint()


def test_a_row_is_noise_up_to_its_first_changed_choice(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    jumped = row({9: 1e-4, 10: 2e-4}, {9: 1, 11: 5})
    noise = noise_of(jumped, reference)
    assert noise.curve == {**dict.fromkeys(range(1, 9), 1e-7), None: 1e-7} and noise.weights is None
    assert noise.gradient == {(1, "mlp.up.weight"): 1e-6, None: 1e-6}
    limits = limits_from(reference.model_copy(update={"noise": (row({}, {}, "a"), jumped, row({}, {}, "b"))}))
    assert isinstance(limits.curve, dict) and max(limits.curve.values()) < 2e-6 and limits.routing == IN_FLOAT32


def test_rows_that_all_part_early_leave_no_place_without_a_limit(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    rows = tuple(row({step: 1e-4 for step in range(4, 13)}, {4: 1}, name) for name in "abc")
    limits = limits_from(reference.model_copy(update={"noise": (*rows, row({1: 1.0}, {1: 7}, "d"))}))
    assert isinstance(limits.curve, dict) and 9e-7 < limits.curve[None] < 1e-5 and limits.curve.get(12) is None
    assert limits.weights is None and isinstance(limits.first_step, dict)
    assert max(limits.first_step.values()) < 1e-5


def test_in_sixteen_bits_a_row_is_noise_to_its_end(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    half = reference.model_copy(update={"precision": "bf16"})
    assert noise_of(row({9: 1e-4}, {1: 900}), half).curve[9] == 1e-4


def test_a_run_with_a_jump_becomes_a_row_that_holds_the_changes(
    promoted: tuple[Path, Reference], tmp_path: Path
) -> None:
    _, reference = promoted
    run = RunPaths(tmp_path / "20260102T030405Z_tiny_mixture_fake_fake_bbbbbb")
    record_run(run, MIXTURES, "tiny_mixture")

    def jump(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "experts" and event["step"] == 9:
                event["tokens"]["1"][0] += 1
                event["tokens"]["1"][1] -= 1
        return events

    edit(run.events / "rank1.jsonl", jump)
    (found,) = with_noise(reference, run).noise
    assert found.routing == {9: 1}
